"""What the memory of the virtual device does, to the byte: layers, optimizers, autocast, graphs, attention."""

from __future__ import annotations

import pytest
from on_h200 import WORKSPACES, allocated, randn

import jupyter_gpumem as gm
from jupyter_gpumem.units import MiB

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


def test_memory_is_that_of_the_rounded_sizes(h200):
    start = allocated()
    x = torch.zeros(1000, device="cuda")
    assert allocated() - start == 4096
    view = x[10:20].view(2, 5).t()
    assert view.data_ptr() == x.data_ptr() + 40
    y = x + 1
    assert allocated() - start == 2 * 4096
    x.add_(1)
    x.copy_(torch.ones(1000))
    assert allocated() - start == 2 * 4096
    del x
    assert allocated() - start == 2 * 4096
    del view
    assert allocated() - start == 4096
    del y
    assert allocated() == start


def test_a_linear_layer_by_hand(h200):
    layer, x = nn.Linear(1024, 2048).cuda(), randn(512, 1024)
    start = allocated()
    out = layer(x)
    workspaces = 33 * MiB  # cuBLAS and cuBLASLt
    assert allocated() - start == 512 * 2048 * 4 + workspaces
    out.sum().backward()
    del out
    assert allocated() - start == 1024 * 2048 * 4 + 2048 * 4 + WORKSPACES


def test_eight_linear_layers_and_adamw_as_on_an_h200(h200):
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x = randn(1024, 4096)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.cuda.max_memory_allocated() / MiB == pytest.approx(2641.625)
    del model, optimizer, x
    assert allocated() == WORKSPACES


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}])
def test_what_an_optimizer_needs_at_its_peak(h200, options):
    weight = nn.Parameter(torch.empty(1 << 20, device="cuda"))
    other = nn.Parameter(torch.empty(1 << 20, device="cuda"))
    optimizer = torch.optim.AdamW([weight, other], **options)
    weight.grad, other.grad = torch.zeros_like(weight), torch.zeros_like(other)
    optimizer.step()
    before = allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    one = 4 * MiB
    # for all parameters at once; for one, with the last one's denominator still there; and inside the kernel
    expected = {"foreach": 2 * one, "single": 3 * one, "fused": 0}
    kind = "fused" if options.get("fused") else "single" if options else "foreach"
    assert torch.cuda.max_memory_allocated() - before == pytest.approx(expected[kind], abs=4096)


def test_autocast_keeps_cast_weights_until_it_ends(h200):
    layer, x = nn.Linear(1024, 1024, bias=False).cuda(), randn(64, 1024)
    with torch.no_grad():
        layer(x)  # the workspace
    start = allocated()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cuda")
        out = layer(x)
        assert out.dtype == torch.bfloat16
        half, cast_x, result = 1024 * 1024 * 2, 64 * 1024 * 2, 64 * 1024 * 2
        assert allocated() - start == half + cast_x + result
        again = layer(x)
        assert allocated() - start == half + 2 * (cast_x + result)
        assert F.softmax(out, -1).dtype == torch.float32
        assert (out + x).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert layer(x).dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")
    del out, again
    assert allocated() == start


def test_autocast_without_a_graph_keeps_nothing(h200):
    layer, x = nn.Linear(256, 256, bias=False).cuda(), randn(4, 256)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        layer(x)
    start = allocated()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        layer(x)
    assert allocated() == start


def test_a_running_sum_of_losses_keeps_the_graphs(h200):
    # pytorch/pytorch#1840
    head = nn.Linear(256, 1).cuda()
    total = 0
    head(randn(1, 256))
    start = allocated()
    for _ in range(5):
        total = total + head(randn(64, 256)).pow(2).mean()
    held = allocated() - start
    assert held >= 5 * 64 * 256 * 4
    total = total.detach()
    assert allocated() - start <= 512


def test_evaluation_without_no_grad_keeps_activations(h200):
    # pytorch/pytorch#4932
    net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).cuda().eval()
    x = randn(1024, 512)
    net(x)
    start = allocated()
    out = net(x)
    assert allocated() - start == 8 * 1024 * 512 * 4
    del out
    with torch.no_grad():
        out = net(x)
    assert allocated() - start == 1024 * 512 * 4
    assert out.grad_fn is None


def test_checkpointing_saves_memory(h200):
    from torch.utils.checkpoint import checkpoint

    blocks = nn.ModuleList(nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)) for _ in range(6)).cuda()

    def peak(wrap):
        x = randn(2048, 512, requires_grad=True)
        torch.cuda.reset_peak_memory_stats()
        for block in blocks:
            x = wrap(block, x)
        x.sum().backward()
        return torch.cuda.max_memory_allocated()

    peak(lambda block, x: block(x))
    plain = peak(lambda block, x: block(x))
    assert peak(lambda block, x: checkpoint(block, x, use_reentrant=False)) < plain - 6 * 2 * MiB
    assert peak(lambda block, x: checkpoint(block, x, use_reentrant=True)) < plain - 6 * 2 * MiB


@pytest.mark.parametrize("module", [False, True])
def test_attention_never_makes_the_scores(h200, module):
    batch, heads, length, width = 2, 4, 2048, 256
    scores = batch * heads * length * length * 2
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.cuda.reset_peak_memory_stats()
        if module:
            layer = nn.TransformerEncoderLayer(width, heads, width, batch_first=True).cuda()
            layer(randn(batch, length, width)).sum().backward()
        else:
            q = randn(batch, heads, length, width // heads, requires_grad=True)
            F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    assert torch.cuda.max_memory_allocated() < scores + WORKSPACES


def test_which_attention_a_card_takes():
    from jupyter_gpumem.virtual.attention import choose
    from jupyter_gpumem.virtual.cards import find_card

    def taken(card, dtype, **options):
        q = torch.empty(1, 2, 8, options.pop("width", 64), dtype=dtype, device="meta")
        defaults = {"mask": None, "dropout": 0.0, "is_causal": False, "gqa": False} | options
        return choose(find_card(card), q, q, q, **defaults)

    assert taken("H200", torch.bfloat16) == "cudnn"
    assert taken("A100-40GB", torch.bfloat16) == "flash"
    assert taken("A100-40GB", torch.bfloat16, mask=torch.empty(8, 8, device="meta")) == "efficient"
    assert taken("A100-40GB", torch.float32) == "efficient"
    assert taken("T4", torch.float16) == "efficient"
    assert taken("T4", torch.bfloat16) == "math"
    assert taken("H200", torch.float32, width=63) == "math"


def test_a_full_card_raises_pytorchs_error():
    with gm.virtual_gpu("24GiB"):
        held = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(20)]
        with pytest.raises(
            torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate 8\.00 GiB\. GPU 0 has"
        ):
            torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
        del held
        assert torch.empty(8 << 30, dtype=torch.uint8, device="cuda").numel() == 8 << 30


def test_a_full_card_inside_a_backward_pass():
    with gm.virtual_gpu("4GiB"):
        layers = nn.Sequential(*[nn.Linear(8192, 8192, bias=False) for _ in range(8)]).cuda()
        loss = layers(torch.randn(16, 8192, device="cuda")).sum()
        with pytest.raises(torch.OutOfMemoryError):
            loss.backward()
        del loss
        layers.zero_grad()
        layers[0](torch.randn(16, 8192, device="cuda")).sum().backward()
        del layers


def test_a_large_model_costs_nothing(h200):
    with torch.device("cuda"):
        model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False, dtype=torch.bfloat16) for _ in range(100)])
    assert torch.cuda.memory_allocated() == 100 * 8192 * 8192 * 2
    del model
