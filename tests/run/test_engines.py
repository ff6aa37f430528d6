"""The engine of a job, or of its caller."""

import pytest

from photinus.core.errors import UsageError
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.run.train import train


@pytest.mark.parametrize("speeds", [2, 4])
def test_speeds_that_are_not_one_for_each_worker_are_refused_before_a_folder_is_made(
    small, tmp_path, speeds
):
    engine = SimulatedEngine(SimulatedCluster(step_seconds=(0.01,) * speeds))
    with pytest.raises(UsageError, match=f"or one for each; got {speeds} numbers for 3 workers"):
        train(small.job(workers=3), small.data(), folder=tmp_path / "run", engine=engine)
    assert not (tmp_path / "run").exists()


def test_with_a_deadline_fewer_workers_may_train_than_have_speeds(small, tmp_path):
    engine = SimulatedEngine(SimulatedCluster(step_seconds=(0.01,) * 3))
    job = small.job(workers=3, deadline_seconds=1e4)
    assert train(job, small.data(), folder=tmp_path / "run", engine=engine).folder.is_dir()
