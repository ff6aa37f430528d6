"""Workers leave an executor that is decommissioned just after a push, or after half a minute."""

from photinus.engine.spark.decommission import DepartingTask, TaskMover


class Application:
    """Two workers; executor 7 goes away."""

    is_possible = True

    def __init__(self):
        self.leaving, self.ended, self.retired, self.empty, self.seconds = [], [], [], [], 0.0

    def tasks(self, stages):
        assert stages == [3]
        return self.leaving

    def end(self, task):
        self.ended.append(task)

    def retire(self, slot, attempt):
        self.retired.append((slot, attempt))

    def has_left(self, slot, attempt):
        return (slot, attempt) in self.empty


def moved(application, events):
    moves = TaskMover(application, application, events.append, lambda: application.seconds)

    def look(seconds):
        application.seconds += seconds
        moves.look(lambda: [3])
        return application.ended

    return look


def test_a_worker_leaves_after_its_next_push_and_says_so_once():
    application, events = Application(), []
    look, task = moved(application, events), DepartingTask(11, 1, "7")
    assert look(1.0) == []
    application.leaving = [task]
    assert look(2.0) == look(0.2) == []
    assert application.retired == [(1, "11")]
    application.empty = [(1, "11")]
    assert look(0.2) == [task]
    assert look(2.0) == [task], "it is told to go once"
    assert [e.text for e in events] == [
        "executor 7 is decommissioned; worker 1 leaves it after its next push"
    ]


def test_a_worker_that_does_not_push_leaves_as_it_is():
    application = Application()
    look, application.leaving = moved(application, []), [DepartingTask(11, 1, "7")]
    assert look(2.0) == look(29.0) == []
    assert len(look(2.0)) == 1


def test_nobody_looks_where_nothing_is_decommissioned():
    application = Application()
    application.is_possible, application.tasks = False, None
    assert moved(application, [])(5.0) == []
