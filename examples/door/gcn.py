"""PyTorch's gcn: a graph of handwritten digits with a sparse adjacency, trained as one batch.

shoal run examples/door/gcn.py
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from torch import nn

import shoal

KNOWN = 200


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


class Graph(shoal.Recipe):
    """A sample is a node's number and its label; the labels of the first nodes are known."""

    search_space = {"hidden": shoal.grid([8, 16]), "lr": shoal.grid([0.01, 0.03])}
    metric, mode, max_epochs, batch_size = "accuracy", "max", 10, KNOWN

    def data(self):
        *_, labels = graph()
        numbers = np.arange(len(labels))
        held_out = (numbers[KNOWN:], labels[KNOWN:])
        return shoal.Data.arrays(numbers[:KNOWN], labels[:KNOWN], validation=held_out)

    def configure_model(self, config):
        nodes, adjacency, _ = graph()
        return GCN(nodes, adjacency, config["hidden"], dropout=0.5)

    def configure_optimizers(self, model, config):
        return torch.optim.Adam(model.parameters(), config["lr"], weight_decay=5e-4)

    def training_step(self, model, batch):
        numbers, labels = batch
        return nn.functional.cross_entropy(model()[numbers], labels)

    def validation_step(self, model, batch):
        numbers, labels = batch
        return {"accuracy": (model()[numbers].argmax(1) == labels).float()}
