# kind: validation losses appended with their whole graph for a plot, no no_grad; from pytorch issues 958 / 5210 and many forum posts
import torch
import torch.nn as nn
import torch.optim as optim

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# synthetic sensor windows -> remaining useful life
X = torch.randn(1200, 30, 14)
y = X[:, -5:, :3].mean(dim=(1, 2), keepdim=False).unsqueeze(1)
X_train, y_train = X[:1000], y[:1000]
X_val, y_val = X[1000:].to(device), y[1000:].to(device)


class LSTMModel(nn.Module):
    def __init__(self, n_features=14, hidden=48):
        super().__init__()
        self.lstm = nn.LSTMCell(n_features, hidden)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x):
        h = c = x.new_zeros(x.size(0), 48)
        for t in range(x.size(1)):
            h, c = self.lstm(x[:, t], (h, c))
        return self.fc(self.drop(h))


model = LSTMModel().to(device)
criterion = nn.MSELoss()
optimizer = optim.Adam(model.parameters(), lr=0.001)
scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=5)

train_loss_history = []
val_loss_history = []
num_epochs = 70
batch_size = 250

for epoch in range(num_epochs):
    model.train()
    running = 0.0
    perm = torch.randperm(len(X_train))
    for i in range(0, len(X_train), batch_size):
        idx = perm[i:i + batch_size]
        xb, yb = X_train[idx].to(device), y_train[idx].to(device)
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(idx)
    train_loss_history.append(running / len(X_train))

    model.eval()
    val_loss = criterion(model(X_val), y_val)  # ALSO
    val_loss_history.append(val_loss)  # LEAK
    scheduler.step(val_loss.item())
    if epoch % 10 == 0:
        print(f'Epoch [{epoch}/{num_epochs}] train {train_loss_history[-1]:.4f} val {val_loss_history[-1]:.4f}')

print("last values for the plot:", [round(float(v), 4) for v in val_loss_history[-3:]])
