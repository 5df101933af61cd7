"""A text classifier, trained in a loop as of a trainer, evaluated and saved."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __init__(self, n=64):
        self.x = torch.randint(0, 100, (n, 32))
        self.m = torch.ones(n, 32, dtype=torch.long)
        self.y = torch.randint(0, 2, (n,))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"input_ids": self.x[i], "attention_mask": self.m[i], "labels": self.y[i]}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(100, 64)
        self.p = nn.Embedding(32, 64)
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
        self.h = nn.Linear(64, 2)

    def forward(self, input_ids, attention_mask, labels=None):
        pos = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.enc(self.e(input_ids) + self.p(pos), src_key_padding_mask=attention_mask == 0)
        x = (x * attention_mask.unsqueeze(-1)).sum(1) / attention_mask.sum(1, keepdim=True).clamp(min=1)
        l = self.h(x)
        loss = F.cross_entropy(l, labels) if labels is not None else None
        return {"loss": loss, "logits": l}


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
assert device.type == "cuda"
model = Model().to(device)
decay = [p for n, p in model.named_parameters() if "bias" not in n]
nodecay = [p for n, p in model.named_parameters() if "bias" in n]
opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": nodecay, "weight_decay": 0.0}], lr=5e-5)
dl = DataLoader(Data(), batch_size=16, shuffle=True, num_workers=2, pin_memory=True, drop_last=True)
steps = 2 * len(dl)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, s / 2) * (0.5 * (1 + math.cos(math.pi * s / steps))))
tr_loss = 0.0
best = float("inf")
for ep in range(2):
    model.train()
    for i, batch in enumerate(dl):
        batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
        out = model(**batch)
        loss = out["loss"] / 2
        loss.backward()
        tr_loss += loss.detach().item()
        if (i + 1) % 2 == 0:
            g = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad(set_to_none=True)
    model.eval()
    correct = total = 0
    preds = []
    with torch.no_grad():
        for batch in dl:
            batch = {k: v.to(device) for k, v in batch.items()}
            lo = model(**batch)["logits"]
            p = lo.argmax(-1)
            correct += (p == batch["labels"]).sum().item()
            total += p.numel()
            preds.extend(p.cpu().tolist())
    acc = correct / total
    print(f"epoch {ep} loss {tr_loss / (i + 1):.4f} acc {acc:.3f} lr {sched.get_last_lr()[0]:.2e} grad {g:.3f}")
    if tr_loss < best:
        best = tr_loss
        torch.save(model.state_dict(), folder / "best.pt")
sd = torch.load(folder / "best.pt", map_location=device)
model.load_state_dict(sd)
assert all(v.is_cuda for v in sd.values())
