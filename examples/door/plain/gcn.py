"""PyTorch's gcn without Shoal: a grid of four configurations."""

import itertools

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from torch import nn

KNOWN = 200
EPOCHS = 10


class GraphConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(inputs, outputs))
        nn.init.xavier_normal_(self.kernel)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, nodes, adjacency):
        return torch.sparse.mm(adjacency, nodes @ self.kernel) + self.bias


class GCN(nn.Module):
    """Two layers, over all nodes at once; the graph belongs to the model."""

    def __init__(self, nodes, adjacency, hidden, dropout):
        super().__init__()
        self.register_buffer("nodes", nodes)
        self.register_buffer("adjacency", adjacency)
        self.first = GraphConv(nodes.shape[1], hidden)
        self.second = GraphConv(hidden, 10)
        self.dropout = nn.Dropout(dropout)

    def forward(self):
        hidden = torch.relu(self.first(self.nodes, self.adjacency))
        return self.second(self.dropout(hidden), self.adjacency)


def graph():
    """The digits' nearest neighbours, as a normalized adjacency with self-loops."""
    pixels, labels = load_digits(return_X_y=True)
    near = kneighbors_graph(pixels, 5).toarray()
    links = np.maximum(near, near.T) + np.eye(len(near))
    scale = links.sum(1) ** -0.5
    adjacency = torch.tensor(scale[:, None] * links * scale, dtype=torch.float32)
    nodes = torch.tensor(pixels / 16, dtype=torch.float32)
    return nodes, adjacency.to_sparse(), labels


def train(hidden, lr):
    torch.manual_seed(0)
    nodes, adjacency, labels = graph()
    labels = torch.tensor(labels)
    model = GCN(nodes, adjacency, hidden, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr, weight_decay=5e-4)
    for _ in range(EPOCHS):
        model.train()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model()[:KNOWN], labels[:KNOWN])
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model()[KNOWN:].argmax(1) == labels[KNOWN:]).float()
    print(f"hidden {hidden}, lr {lr:g}: accuracy {right.mean().item():.3f}")


for hidden, lr in itertools.product((8, 16), (0.01, 0.03)):
    train(hidden, lr)
