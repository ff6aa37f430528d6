"""A model of one's own in NumPy: Poisson regression of counts, trained with four workers."""

import tempfile

import numpy as np

import photinus as ph
from photinus.testing import check_model


class Counts(ph.Model):
    """Predicts a count by exp(w·x + b); its loss is exp(z) − y·z, with z = w·x + b."""

    def __init__(self, features):
        tensors = [("w", (features,), "trained"), ("b", (1,), "trained")]
        self.parameters = ph.Parameters(ph.Layout.of(tensors))

    def _logs(self, features):
        return features @ self.parameters.view("w") + self.parameters.view("b")  # [B]

    def learn(self, batch, seed):  # noqa: ARG002 - nothing here is left to chance
        logs = self._logs(batch.features)
        slope = (np.exp(logs) - batch.labels) / len(logs)  # [B]
        gradient = np.append(slope @ batch.features, slope.sum())
        loss = np.mean(np.exp(logs) - batch.labels * logs)
        return gradient.astype(np.float32), {"loss": float(loss)}

    def measure(self, batch):
        logs = self._logs(batch.features)
        loss = np.sum(np.exp(logs) - batch.labels * logs)
        return {"examples": float(len(logs)), "loss": float(loss)}

    def outputs(self, features):
        return np.exp(self._logs(features))[:, None]  # [B, 1]


def main(rows=8_000, epochs=5.0):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, 8)).astype(np.float32)
    truth = 0.3 * rng.standard_normal(8).astype(np.float32)
    counts = rng.poisson(np.exp(features @ truth + 0.5)).astype(np.float32)
    check_model(lambda: Counts(8), ph.Batch(features[:16], counts[:16]))
    given = {"module": "own_model:Counts", "arguments": {"features": 8}}
    model = ph.ModuleConfig(**given, epochs=epochs, lr=0.01)
    job = ph.Job(model=model, workers=4, engine="simulate")
    with tempfile.TemporaryDirectory() as folder:
        outcome = ph.train(job, ph.ArrayData(features, counts), folder=f"{folder}/run")
    apart = float(np.abs(outcome.trained.model().parameters.view("w") - truth).max())
    print(f"largest error of a weight {apart:.3f}")
    return apart


if __name__ == "__main__":
    main()
