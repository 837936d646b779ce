# kind: notebook cell writes the softmax of each batch into a slice of a preallocated tensor without no_grad, so the tensor's history gets one more CopySlices with the batch's activations; after forum posts on filling prediction arrays and serend1p1ty/SeqNet PR 14
# %% imports
import timm
import torch
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda")
torch.manual_seed(42)

# %% data: tiles of an aerial survey
N_TILES = 640
N_CLASSES = 17
BATCH_SIZE = 8

tiles = torch.randint(0, 256, (N_TILES, 3, 48, 48), dtype=torch.uint8)
labels = torch.randint(0, N_CLASSES, (N_TILES,))
loader = DataLoader(TensorDataset(tiles, labels), batch_size=BATCH_SIZE)
mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)
std = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1)

# %% model
model = timm.create_model("mobilenetv3_small_050", pretrained=False, num_classes=N_CLASSES)
model = model.to(device)


def prepare(images):
    return (images.to(device).float() / 255 - mean) / std


# %% a few steps of fine-tuning of the head
optimizer = torch.optim.Adam(model.get_classifier().parameters(), lr=1e-3)
model.train()
for step, (images, target) in enumerate(loader):
    loss = torch.nn.functional.cross_entropy(model(prepare(images)), target.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 4:
        break
print("loss of the last step", loss.item())

# %% predictions for the whole survey
model.eval()
probs = torch.zeros(N_TILES, N_CLASSES, device=device)
confident = 0
for i, (images, target) in enumerate(loader):
    first = i * BATCH_SIZE
    out = model(prepare(images)).softmax(dim=1)
    probs[first:first + len(images)] = out  # LEAK
    confident += int((out.max(dim=1).values > 0.5).sum())
    if (i + 1) % 16 == 0:
        print(f"{first + len(images):4d} of {N_TILES} tiles, {confident} confident")

# %% how do the classes come out?
accuracy = (probs.argmax(dim=1).cpu() == labels).float().mean().item()
share = torch.bincount(probs.argmax(dim=1).cpu(), minlength=N_CLASSES) / N_TILES
print(f"accuracy {accuracy:.3f}")
print("share of classes", [round(s, 3) for s in share.tolist()])
