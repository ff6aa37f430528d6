"""Networks whose tables lie among the workers, for tests on Spark."""

from torch import nn

from photinus.nn import ShardedEmbedding


class Scores(nn.Module):
    def __init__(self, users=60, items=40, dim=4):
        super().__init__()
        self.users, self.items = ShardedEmbedding(users, dim), ShardedEmbedding(items, dim)
        self.bias, self.out = nn.Linear(1, 1), nn.Linear(dim, 2)

    def forward(self, user, item, price):
        vectors = self.users(user) * self.items(item).mean(1)
        return self.out(vectors) + self.bias(price[:, None])
