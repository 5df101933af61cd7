"""Networks for pictures, video and sound."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .case import case, classify, images, train, vision
from .picture_networks import Diffusion, ResNet, Sound, UNet, Video, ViT, autoencoder, discriminator, generator
from .text_networks import Encoder

# Vision transformers.


@case("vision transformer", "AdamW foreach", "bf16 autocast")
def vit_adamw_bf16():
    model = ViT().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, images(32), classify, amp=torch.bfloat16)


@case("vision transformer", "SGD foreach", "fp32")
def vit_sgd_fp32():
    model = ViT(layers=6, dropout=0.1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    yield from train(model, optimizer, images(32), classify)


@case("vision transformer", "AdamW foreach", "fp32")
def vit_b_16_torchvision():
    model = vision("vit_b_16").cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, images(16), classify)


@case("vision transformer", "AdamW foreach", "bf16 autocast")
def swin_t_bf16():
    model = vision("swin_t").cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, images(32), classify, amp=torch.bfloat16)


@case("vision transformer", "AdamW foreach", "bf16 autocast")
def contrastive_bf16():
    towers = nn.ModuleDict({"image": ViT(outputs=512), "text": Encoder(vocabulary=512, layers=4, dropout=0.0)}).cuda()
    optimizer = torch.optim.AdamW(towers.parameters())

    def batch():
        return torch.randn(64, 3, 224, 224, device="cuda"), torch.randint(1, 512, (64, 77), device="cuda")

    def loss(towers, pictures, text):
        image, words = F.normalize(towers["image"](pictures), dim=-1), F.normalize(towers["text"](text)[:, 0], dim=-1)
        scores, labels = 10 * image @ words.t(), torch.arange(len(image), device="cuda")
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.t(), labels)) / 2

    yield from train(towers, optimizer, batch, loss, amp=torch.bfloat16)


# Convolutional networks.


@case("CNN", "SGD foreach", "fp32")
def resnet50_sgd_fp32():
    model = vision("resnet50").cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    yield from train(model, optimizer, images(32), classify)


@case("CNN", "Adam foreach", "bf16 autocast")
def resnet50_channels_last_bf16():
    model = vision("resnet50").to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters())
    yield from train(model, optimizer, images(64, layout=torch.channels_last), classify, amp=torch.bfloat16)


@case("CNN", "SGD fused", "fp16 autocast")
def resnet50_fused_fp16():
    model = vision("resnet50").cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    yield from train(model, optimizer, images(64), classify, amp=torch.float16, scaler=True)


@case("CNN", "none", "bf16")
def resnet50_inference_bf16():
    model = vision("resnet50").to("cuda", torch.bfloat16, memory_format=torch.channels_last).eval()
    with torch.inference_mode():
        for _ in range(2):
            pictures = torch.randn(128, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
            model(pictures.contiguous(memory_format=torch.channels_last))
    yield model


@case("CNN", "AdamW foreach", "bf16 autocast")
def convnext_tiny_bf16():
    model = vision("convnext_tiny").cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, images(32), classify, amp=torch.bfloat16)


@case("CNN", "SGD for loop", "fp32")
def efficientnet_b0_for_loop():
    model = vision("efficientnet_b0").cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    yield from train(model, optimizer, images(32), classify)


@case("CNN", "RMSprop foreach", "fp32")
def mobilenet_rmsprop_fp32():
    model = vision("mobilenet_v3_large").cuda()
    optimizer = torch.optim.RMSprop(model.parameters(), momentum=0.9)
    yield from train(model, optimizer, images(64), classify)


@case("CNN", "SGD foreach", "fp32", fast=True)
def resnet26_sgd_fp32():
    model = ResNet((2, 2, 2, 2)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    yield from train(model, optimizer, images(32), classify)


@case("CNN", "AdamW foreach", "bf16 autocast")
def video_bf16():
    model = Video().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def batch():
        return torch.randn(4, 3, 16, 112, 112, device="cuda"), torch.randint(0, 400, (4,), device="cuda")

    yield from train(model, optimizer, batch, classify, amp=torch.bfloat16)


@case("CNN", "AdamW foreach", "fp32")
def sound_fp32():
    model = Sound().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def batch():
        return torch.randn(8, 1, 16000, device="cuda"), torch.randint(0, 256, (8, 16000), device="cuda")

    yield from train(model, optimizer, batch, classify)


# Images to images.


def segment(model, pictures, labels):
    return F.cross_entropy(model(pictures), labels)


def masks(batch, size):
    return lambda: (
        torch.randn(batch, 3, size, size, device="cuda"),
        torch.randint(0, 21, (batch, size, size), device="cuda"),
    )


@case("U-Net", "AdamW foreach", "fp32", fast=True)
def unet_adamw_fp32():
    model = UNet().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, masks(8, 256), segment)


@case("U-Net", "Adam fused", "bf16 autocast")
def unet_fused_bf16():
    model = UNet(width=64).cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    yield from train(model, optimizer, masks(8, 256), segment, amp=torch.bfloat16)


def noisy(batch, size=64):
    return lambda: (torch.randn(batch, 3, size, size, device="cuda"), torch.randint(0, 1000, (batch,), device="cuda"))


def denoise(model, pictures, step):
    noise = torch.randn_like(pictures)
    strength = (step / 1000)[:, None, None, None]
    return F.mse_loss(model(pictures * (1 - strength) + noise * strength, step), noise)


@case("U-Net", "AdamW foreach", "fp16 autocast")
def diffusion_fp16_scaler():
    model = Diffusion().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, noisy(32), denoise, amp=torch.float16, scaler=True, clip=1.0)


@case("U-Net", "AdamW foreach", "fp32")
def diffusion_average_fp32():
    model = Diffusion(width=64).cuda()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    for model in train(model, optimizer, noisy(32), denoise):  # noqa: B020
        average.update_parameters(model)
        yield model


@case("U-Net", "none", "fp16")
def diffusion_sampling_fp16():
    model = Diffusion().half().cuda().eval()
    with torch.inference_mode():
        x = torch.randn(16, 3, 64, 64, device="cuda", dtype=torch.float16)
        for step in range(3):
            x = x - 0.1 * model(x, torch.full((16,), step, device="cuda")).to(x.dtype)
    yield model


@case("U-Net", "Adam foreach", "fp32")
def gan_fp32():
    make, judge = generator().cuda(), discriminator().cuda()
    makes, judges = (torch.optim.Adam(m.parameters(), 2e-4, (0.5, 0.999)) for m in (make, judge))
    for _ in range(2):
        real = torch.randn(128, 3, 64, 64, device="cuda")
        fake = make(torch.randn(128, 128, 1, 1, device="cuda"))
        judges.zero_grad()
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        loss.backward()
        judges.step()
        makes.zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        makes.step()
        yield nn.ModuleList([make, judge])


@case("U-Net", "AdamW foreach", "fp32")
def autoencoder_fp32():
    model = autoencoder().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = lambda: (torch.rand(32, 3, 256, 256, device="cuda"),)  # noqa: E731
    yield from train(model, optimizer, batch, lambda model, x: F.mse_loss(model(x), x))
