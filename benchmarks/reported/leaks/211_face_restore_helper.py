# kind: the helper of a face enhancer collects crops and restored faces in lists which clean_all() empties, the web UI's wrapper never calls it; from AUTOMATIC1111/stable-diffusion-webui PR 1283 and brycedrennan/imaginAIry PR 32
import torch
import torch.nn as nn
import torch.nn.functional as F


class FaceDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 5, 4, 2), nn.ReLU(), nn.Conv2d(8, 1, 3, 2, 1))

    @torch.no_grad()
    def detect_faces(self, img, n):
        heat = self.net(img)[0, 0]
        flat = heat.flatten().topk(n).indices
        scale = img.shape[-1] // heat.shape[-1]
        return torch.stack([flat % heat.shape[-1], flat // heat.shape[-1]], 1).mul(scale).tolist()


class FaceRestoreHelper:
    def __init__(self, upscale=1, face_size=64):
        self.upscale, self.face_size = upscale, face_size
        self.face_det = FaceDetector().cuda().eval()
        self.clean_all()

    def clean_all(self):
        self.all_landmarks = []
        self.restored_faces = []
        self.cropped_faces = []
        self.det_faces = []

    def read_image(self, img):
        self.input_img = img
        self.n_new = 0

    def get_face_landmarks(self, max_faces=2):
        points = self.face_det.detect_faces(self.input_img, max_faces)
        self.det_faces.extend(points)
        self.n_new = len(points)
        return len(points)

    def align_warp_face(self):
        s = self.face_size
        h, w = self.input_img.shape[-2:]
        for x, y in self.det_faces[-self.n_new:]:
            x0, y0 = max(0, min(x - s // 2, w - s)), max(0, min(y - s // 2, h - s))
            self.all_landmarks.append((x0, y0))
            crop = self.input_img[:, :, y0:y0 + s, x0:x0 + s].clone()
            self.cropped_faces.append(crop)  # ALSO

    def new_crops(self):
        return self.cropped_faces[-self.n_new:]

    def add_restored_face(self, face):
        self.restored_faces.append(face)  # LEAK

    def paste_faces_to_input_image(self):
        out = self.input_img.clone()
        s = self.face_size
        for (x0, y0), face in zip(self.all_landmarks[-self.n_new:], self.restored_faces[-self.n_new:]):
            out[:, :, y0:y0 + s, x0:x0 + s] = F.interpolate(face, size=(s, s))
        return out


class GFPGANv1(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.enc = nn.Conv2d(3, ch, 3, 2, 1)
        self.mid = nn.Conv2d(ch, ch, 3, padding=1)
        self.out = nn.Conv2d(ch, 12, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x):
        h = F.leaky_relu(self.enc(x), 0.2)
        h = F.leaky_relu(self.mid(h), 0.2)
        return F.interpolate(self.shuffle(self.out(h)), scale_factor=2)


class GFPGANer:
    def __init__(self):
        self.gfpgan = GFPGANv1().cuda().eval()
        self.face_helper = FaceRestoreHelper()

    @torch.no_grad()
    def enhance(self, img):
        self.face_helper.read_image(img)
        self.face_helper.get_face_landmarks()
        self.face_helper.align_warp_face()
        for crop in self.face_helper.new_crops():
            self.face_helper.add_restored_face(self.gfpgan(crop))
        return self.face_helper.paste_faces_to_input_image()


class Script:
    """txt2img followed by "Restore faces"."""

    def __init__(self):
        self.decoder = nn.Sequential(nn.Upsample(scale_factor=8), nn.Conv2d(4, 3, 3, padding=1), nn.Sigmoid()).cuda()
        self.restorer = GFPGANer()

    @torch.no_grad()
    def txt2img(self, seed, restore_faces=True):
        torch.manual_seed(seed)
        img = self.decoder(torch.randn(1, 4, 32, 32, device="cuda"))
        return self.restorer.enhance(img) if restore_faces else img


def main():
    webui = Script()
    for seed in range(85):
        img = webui.txt2img(seed)
        if seed % 17 == 0:
            print(seed, tuple(img.shape), f"{img.mean().item():.4f}")


if __name__ == "__main__":
    main()
