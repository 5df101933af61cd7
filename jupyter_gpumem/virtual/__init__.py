"""The virtual GPU: a CUDA device that computes nothing and whose memory behaves as the real one's.

Nothing imports this package before it is switched on; from then on it may import torch.
"""
