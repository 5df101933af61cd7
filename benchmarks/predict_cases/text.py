"""Transformers for text: training and generation."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

from .case import case, next_token, tokens, train
from .text_networks import GPT, T5, Encoder, GrowingCache, Llama, LoRA, StaticCache, Translator

# Decoders.


@case("decoder", "AdamW foreach")
def gpt2_adamw_fp32():
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    yield from train(model, optimizer, tokens(4, 512, 50257), next_token)


@case("decoder", "AdamW fused", "bf16 autocast")
def gpt2_adamw_fused_bf16():
    model = GPT().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    yield from train(model, optimizer, tokens(4, 1024, 50257), next_token, amp=torch.bfloat16, clip=1.0)


@case("decoder", "AdamW for loop")
def gpt2_adamw_for_loop():
    model = GPT(layers=6).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    yield from train(model, optimizer, tokens(4, 256, 50257), next_token)


@case("decoder", "Adam foreach", "fp16 autocast")
def gpt2_adam_fp16_scaler():
    model = GPT(dropout=0.1).cuda()
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.01)
    yield from train(model, optimizer, tokens(2, 1024, 50257), next_token, amp=torch.float16, scaler=True, clip=1.0)


@case("decoder", "AdamW foreach", "bf16 autocast")
def gpt2_checkpointing_bf16():
    model = GPT(checkpointing=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, tokens(4, 1024, 50257), next_token, amp=torch.bfloat16)


@case("decoder", "AdamW foreach", "bf16 autocast")
def gpt2_accumulation_bf16():
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, tokens(2, 1024, 50257), next_token, amp=torch.bfloat16, accumulate=4, clip=1.0)


@case("decoder", "AdamW foreach")
def gpt2_eager_attention_fp32():
    model = GPT(layers=6, eager=True, dropout=0.1).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, tokens(4, 1024, 50257), next_token)


@case("decoder", "AdamW foreach", "fp16 autocast")
def gpt2_eager_attention_fp16():
    model = GPT(layers=6, eager=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, tokens(4, 1024, 50257), next_token, amp=torch.float16, scaler=True)


@case("decoder", "SGD foreach", "bf16")
def gpt2_sgd_pure_bf16():
    with torch.device("cuda"):
        model = GPT().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    yield from train(model, optimizer, tokens(4, 1024, 50257), next_token)


@case("decoder", "Adafactor")
def gpt2_adafactor_fp32():
    model = GPT(layers=6).cuda()
    optimizer = torch.optim.Adafactor(model.parameters())
    yield from train(model, optimizer, tokens(4, 512, 50257), next_token)


@case("decoder", "none", "bf16")
def gpt2_no_grad_bf16():
    model = GPT().to("cuda", torch.bfloat16).eval()
    for _ in range(2):
        with torch.no_grad():
            logits = model(torch.randint(0, 50257, (16, 1024), device="cuda"))
            best = logits[:, -1].float().softmax(-1).topk(50)
        del logits, best
        yield model


@case("decoder", "AdamW foreach", "fp32", fast=True)
def gpt2_small_vocabulary_fp32():
    model = GPT(vocabulary=5000, width=512, layers=4, heads=8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, tokens(16, 512, 5000), next_token, clip=1.0)


@case("decoder", "AdamW foreach", "bf16", fast=True)
def llama_pure_bf16():
    model = Llama(layers=6).to(torch.bfloat16).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, tokens(4, 1024, 32000), next_token)


@case("decoder", "AdamW fused", "bf16 autocast")
def llama_fused_autocast():
    with torch.device("cuda"):
        model = Llama()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    yield from train(model, optimizer, tokens(4, 1024, 32000), next_token, amp=torch.bfloat16)


@case("decoder", "AdamW foreach", "bf16 autocast")
def llama_long_checkpointing():
    model = Llama(layers=6, context=8192).cuda()
    model.checkpointing = True
    optimizer = torch.optim.AdamW(model.parameters())

    def loss(model, text):
        text, targets = text[:, :-1], text[:, 1:]
        return F.cross_entropy(model(text).float().flatten(0, 1), targets.flatten())

    yield from train(model, optimizer, tokens(1, 8191, 32000), loss, amp=torch.bfloat16)


@case("decoder", "SGD foreach", "fp32")
def llama_sgd_fp32():
    model = Llama(layers=4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    yield from train(model, optimizer, tokens(4, 512, 32000), next_token)


@case("decoder", "AdamW foreach", "bf16")
def llama_lora_bf16():
    model = Llama(layers=12).requires_grad_(requires_grad=False).to("cuda", torch.bfloat16)
    for block in model.blocks:
        block.q, block.v = (LoRA(part).to("cuda", torch.bfloat16) for part in (block.q, block.v))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    yield from train(model, optimizer, tokens(4, 1024, 32000), next_token)


@case("decoder", "AdamW foreach", "bf16 autocast")
def mixture_of_experts():
    model = Llama(layers=4, experts=8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, tokens(4, 1024, 32000), next_token, amp=torch.bfloat16)


# Generation.


def generate(model, cache, batch, prompt, new):
    with torch.inference_mode():
        text = torch.randint(0, 32000, (batch, prompt), device="cuda")
        logits = model(text, cache)
        for _ in range(new):
            following = logits[:, -1].float().argmax(-1, keepdim=True)
            text = torch.cat([text, following], dim=1)
            logits = model(following, cache)
    return text


@case("generation", "none", "bf16", fast=True)
def generate_growing_cache():
    model = Llama(layers=6).eval().to("cuda", torch.bfloat16)
    generate(model, GrowingCache(), 16, 512, 48)
    yield model


@case("generation", "none", "fp16")
def generate_static_cache():
    model = Llama().half().cuda().eval()
    generate(model, StaticCache(model, 16, 1024, torch.float16), 16, 256, 32)
    yield model


@case("generation", "none", "fp32")
def generate_sampling_fp32():
    model = Llama(layers=6).cuda().eval()
    with torch.no_grad():
        cache = GrowingCache()
        text = torch.randint(0, 32000, (32, 128), device="cuda")
        logits = model(text, cache)
        for _ in range(24):
            best = logits[:, -1].topk(100)
            chosen = torch.multinomial(best.values.softmax(-1), 1)
            logits = model(best.indices.gather(1, chosen), cache)
    yield model


# Encoders, and encoders with decoders.


@case("encoder", "AdamW foreach", "fp32")
def encoder_adamw_fp32():
    model = Encoder().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def loss(model, text, labels):
        return F.cross_entropy(model(text).view(-1, 30522), labels.view(-1), ignore_index=-100)

    def batch():
        text = torch.randint(1, 30522, (8, 256), device="cuda")
        return text, torch.where(torch.rand(text.shape, device="cuda") < 0.15, text, -100)

    yield from train(model, optimizer, batch, loss)


def padded(batch, length, vocabulary):
    def make():
        text = torch.randint(1, vocabulary, (batch, length), device="cuda")
        lengths = torch.linspace(length // 2, length, batch, device="cuda").long()
        padding = torch.arange(length, device="cuda")[None, :] >= lengths[:, None]
        return text.masked_fill(padding, 0), padding

    return make


def restore(model, text, padding):
    return F.cross_entropy(model(text, padding).flatten(0, 1), text.flatten(), ignore_index=0)


@case("encoder", "AdamW fused", "bf16 autocast")
def encoder_padded_bf16():
    model = Encoder().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    yield from train(model, optimizer, padded(8, 384, 30522), restore, amp=torch.bfloat16)


@case("encoder", "SGD foreach", "fp16 autocast")
def encoder_sgd_fp16_scaler():
    model = Encoder(layers=3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    yield from train(model, optimizer, padded(16, 256, 30522), restore, amp=torch.float16, scaler=True)


@case("encoder", "none", "fp32")
def encoder_inference_fp32():
    model = Encoder().cuda().eval()
    for _ in range(2):
        with torch.inference_mode():
            model(torch.randint(1, 30522, (32, 384), device="cuda")).argmax(-1)
        yield model


@case("encoder-decoder", "Adafactor", "fp32")
def t5_adafactor_fp32():
    model = T5().cuda()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)

    def batch():
        return torch.randint(0, 32128, (8, 256), device="cuda"), torch.randint(0, 32128, (8, 129), device="cuda")

    yield from train(model, optimizer, batch, translate)


def translate(model, source, target):
    logits = model(source, target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)


@case("encoder-decoder", "AdamW foreach", "bf16 autocast")
def t5_adamw_bf16():
    model = T5().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def batch():
        return torch.randint(0, 32128, (16, 512), device="cuda"), torch.randint(0, 32128, (16, 129), device="cuda")

    yield from train(model, optimizer, batch, translate, amp=torch.bfloat16)


@case("encoder-decoder", "Adam foreach", "fp16 autocast")
def translator_fp16():
    model = Translator().cuda()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))

    def batch():
        return torch.randint(0, 32000, (16, 256), device="cuda"), torch.randint(0, 32000, (16, 257), device="cuda")

    yield from train(model, optimizer, batch, translate, amp=torch.float16, scaler=True)
