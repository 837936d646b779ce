# kind: predicted vertices of every validation batch are appended to a list on the trainer that is never cleared; after Lightning-AI/pytorch-lightning issue 14270
import torch
import torch.nn as nn
import torch.nn.functional as F


class SMPLHead(nn.Module):
    def __init__(self, in_feat=128, n_verts=1200, n_joints=24):
        super().__init__()
        self.n_joints = n_joints
        self.pose = nn.Linear(in_feat, n_joints * 6)
        self.shape = nn.Linear(in_feat, 10)
        self.register_buffer("basis", torch.randn(10, n_verts * 3) * 0.01)
        self.register_buffer("J_regressor", torch.rand(n_joints, n_verts))

    def forward(self, feat):
        pose = self.pose(feat).view(-1, self.n_joints, 6)
        shape = self.shape(feat)
        verts = (shape @ self.basis).view(feat.shape[0], -1, 3)
        joints = torch.einsum("jv,bvc->bjc", self.J_regressor, verts)
        return {"pose": pose, "shape": shape, "smpl_vertices": verts, "smpl_joints3d": joints}


class PARE(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(32, 128), nn.ReLU())
        self.head = SMPLHead()

    def forward(self, images):
        return self.head(self.backbone(images))


class PARETrainer:
    def __init__(self, device):
        self.device = device
        self.model = PARE().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-5)
        self.val_accuracy_results = []
        self.evaluation_results = {"mpjpe": [], "pred_verts": []}

    def training_step(self, batch):
        pred = self.model(batch["img"].to(self.device))
        loss = F.mse_loss(pred["smpl_joints3d"], batch["joints3d"].to(self.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validation_step(self, batch):
        pred = self.model(batch["img"].to(self.device))
        gt = batch["joints3d"].to(self.device)
        error = torch.sqrt(((pred["smpl_joints3d"] - gt) ** 2).sum(dim=-1)).mean(dim=-1)
        self.evaluation_results["mpjpe"].append(error.cpu())
        self.evaluation_results["pred_verts"].append(pred["smpl_vertices"])  # LEAK
        return error.mean().item()

    def validation_epoch_end(self, outputs):
        avg_mpjpe = 1000 * sum(outputs) / len(outputs)
        self.val_accuracy_results.append(avg_mpjpe)
        return {"val_mpjpe": avg_mpjpe, "best": min(self.val_accuracy_results)}

    def fit(self, epochs, train_loader, val_loader):
        for epoch in range(epochs):
            self.model.train()
            for batch in train_loader():
                self.training_step(batch)
            self.model.eval()
            outs = [self.validation_step(b) for b in val_loader()]
            print(epoch, self.validation_epoch_end(outs))


def make_loader(n, bs):
    def it():
        for _ in range(n):
            yield {"img": torch.randn(bs, 3, 32, 32), "joints3d": torch.randn(bs, 24, 3)}
    return it


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = PARETrainer(torch.device("cuda"))
    trainer.fit(epochs=20, train_loader=make_loader(4, 16), val_loader=make_loader(6, 32))
