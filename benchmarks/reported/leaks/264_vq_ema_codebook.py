# kind: EMA statistics of a VQ codebook are updated with encoder outputs that were not detached, so each step hangs its assignments on the chain; in the manner of reports on EMA vector quantisers (forgotten .data/.detach in the MishaLaskin/zalandoresearch-style VectorQuantizerEMA)
import torch
import torch.nn as nn
import torch.nn.functional as F


class VectorQuantizerEMA(nn.Module):
    def __init__(self, num_embeddings, embedding_dim, commitment_cost=0.25, decay=0.99, eps=1e-5):
        super().__init__()
        self.K, self.D = num_embeddings, embedding_dim
        self.commitment_cost = commitment_cost
        self.decay = decay
        self.eps = eps
        self.embedding = nn.Embedding(self.K, self.D)
        self.embedding.weight.requires_grad_(False)
        self.register_buffer("cluster_size", torch.zeros(self.K))
        self.register_buffer("ema_w", self.embedding.weight.data.clone())

    def forward(self, inputs):
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        flat = inputs.view(-1, self.D)
        weight = self.embedding.weight
        distances = (flat.pow(2).sum(1, keepdim=True) + weight.pow(2).sum(1)
                     - 2 * flat.detach() @ weight.t())
        indices = distances.argmin(1)
        encodings = F.one_hot(indices, self.K).type_as(flat)
        quantized = (encodings @ weight).view_as(inputs)

        if self.training:
            n = encodings.sum(0)
            self.cluster_size = self.cluster_size * self.decay + (1 - self.decay) * n
            total = self.cluster_size.sum()
            smoothed = (self.cluster_size + self.eps) / (total + self.K * self.eps) * total
            dw = encodings.t() @ flat  # ALSO
            self.ema_w = self.ema_w * self.decay + (1 - self.decay) * dw  # LEAK
            self.embedding.weight.data.copy_(self.ema_w / smoothed.unsqueeze(1).clamp(min=1e-3))

        e_latent_loss = F.mse_loss(quantized.detach(), inputs)
        quantized = inputs + (quantized - inputs).detach()
        return quantized.permute(0, 3, 1, 2).contiguous(), self.commitment_cost * e_latent_loss


class VQVAE(nn.Module):
    def __init__(self, ch=32, dim=16, codes=256):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, ch, 4, 2, 1), nn.ReLU(), nn.Conv2d(ch, ch, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(ch, dim, 1))
        self.vq = VectorQuantizerEMA(codes, dim)
        self.decoder = nn.Sequential(
            nn.Conv2d(dim, ch, 3, 1, 1), nn.ReLU(),
            nn.ConvTranspose2d(ch, ch, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(ch, 3, 4, 2, 1))

    def forward(self, x):
        q, vq_loss = self.vq(self.encoder(x))
        return self.decoder(q), vq_loss


if __name__ == "__main__":
    torch.manual_seed(42)
    model = VQVAE().cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(100):
        data = torch.rand(8, 3, 32, 32, device="cuda") - 0.5
        optimizer.zero_grad()
        recon, vq_loss = model(data)
        loss = F.mse_loss(recon, data) / 0.06 + vq_loss
        loss.backward()
        optimizer.step()
        if (i + 1) % 25 == 0:
            print("%d iterations, loss %.3f, %.1f MB" % (
                i + 1, loss.item(), torch.cuda.memory_allocated() / 1e6))
