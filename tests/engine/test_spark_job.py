"""Why a Spark job failed, in one line."""

from photinus.engine.spark_job import cause_of


def test_the_cause_is_the_line_that_python_raised():
    long = "Job aborted: Task 0 failed\nTraceback\nValueError: no such row\n\tat org.apache.Error"
    assert cause_of(long) == "ValueError: no such row"
    assert cause_of("org.apache.SparkException: lost") == "org.apache.SparkException: lost"
    assert cause_of(None) == "all its tasks ended early"
    assert cause_of(RuntimeError("")) == "RuntimeError"
