# kind: a class variable list gets the layer's GPU output of every batch; after a thread of PyTorch's forum (cuda out of memory error understanding how pytorch stores class variable)
import torch
import torch.nn as nn
import torch.nn.functional as F


class Bottleneck(nn.Module):
    out_saved = [0] * 900

    def __init__(self, nChannels, growthRate, layer_index, train_size, batch_sz):
        super(Bottleneck, self).__init__()
        interChannels = 4 * growthRate
        self.bn1 = nn.BatchNorm2d(nChannels)
        self.conv1 = nn.Conv2d(nChannels, interChannels, kernel_size=1, bias=False)
        self.bn2 = nn.BatchNorm2d(interChannels)
        self.conv2 = nn.Conv2d(interChannels, growthRate, kernel_size=3, padding=1, bias=False)

        # If the layer is still being trained
        self.active = True
        # The index of this layer relative to the overall net
        self.layer_index = layer_index
        self.counter = 0
        self.maxCounter = train_size // batch_sz
        if train_size % batch_sz != 0:
            self.maxCounter += 1

    def forward(self, x):
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        out = torch.cat((x, out), 1)
        if self.layer_index < DenseNet.freezeLayerIndex:
            Bottleneck.out_saved[self.counter] = out  # LEAK
            self.counter += 1
            if self.counter >= self.maxCounter:
                self.counter = 0
                self.active = False
        return out


class Transition(nn.Module):
    def __init__(self, nChannels, nOutChannels):
        super(Transition, self).__init__()
        self.bn1 = nn.BatchNorm2d(nChannels)
        self.conv1 = nn.Conv2d(nChannels, nOutChannels, kernel_size=1, bias=False)

    def forward(self, x):
        return F.avg_pool2d(self.conv1(F.relu(self.bn1(x))), 2)


class DenseNet(nn.Module):
    freezeLayerIndex = 1

    def __init__(self, growthRate, depth, nClasses, train_size, batch_sz):
        super(DenseNet, self).__init__()
        nChannels = 2 * growthRate
        self.conv1 = nn.Conv2d(3, nChannels, kernel_size=3, padding=1, bias=False)
        layers = []
        for i in range(depth):
            layers.append(Bottleneck(nChannels, growthRate, i, train_size, batch_sz))
            nChannels += growthRate
        self.dense1 = nn.Sequential(*layers)
        self.trans1 = Transition(nChannels, nChannels // 2)
        self.fc = nn.Linear(nChannels // 2, nClasses)

    def forward(self, x):
        out = self.trans1(self.dense1(self.conv1(x)))
        return F.log_softmax(self.fc(out.mean(dim=(2, 3))), dim=1)


def train(net, optimizer, n_batches, batch_sz):
    net.train()
    for batch_idx in range(n_batches):
        data = torch.randn(batch_sz, 3, 32, 32).cuda()
        target = torch.randint(0, 10, (batch_sz,)).cuda()
        optimizer.zero_grad()
        loss = F.nll_loss(net(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % 25 == 0:
            print("Train [{}/{}] loss {:.4f}".format(batch_idx, n_batches, loss.item()))


if __name__ == "__main__":
    torch.manual_seed(1)
    net = DenseNet(growthRate=8, depth=3, nClasses=10, train_size=5000, batch_sz=8).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-1, momentum=0.9, weight_decay=1e-4)
    train(net, optimizer, n_batches=90, batch_sz=8)
