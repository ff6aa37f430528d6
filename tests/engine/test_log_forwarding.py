import logging

from photinus.engine.log_forwarding import LogLines


def test_warnings_of_all_loggers_are_kept_once():
    with LogLines() as lines:
        logging.getLogger("photinus.data").warning("slow %s", "disk")
        logging.getLogger("photinus.data").info("not told")
        logging.getLogger().error("of the root")
        assert lines.take() == [
            {"level": "WARNING", "text": "photinus.data: slow disk"},
            {"level": "ERROR", "text": "root: of the root"},
        ]
        assert lines.take() == []
    logging.getLogger("photinus").warning("too late")
    assert lines.take() == []


def test_a_flood_keeps_the_newest_lines_and_each_within_bounds():
    with LogLines() as lines:
        for n in range(300):
            logging.getLogger("a").warning("%d %s", n, "x" * 9000)
        taken = lines.take()
    assert len(taken) == 100
    assert taken[-1]["text"].startswith("a: 299 ")
    assert max(len(line["text"]) for line in taken) == 4000


def test_a_record_that_cannot_be_formatted_is_kept_as_it_was_written():
    with LogLines() as lines:
        lines.handle(logging.LogRecord("a", logging.ERROR, "", 0, "%d", ("no number",), None))
        assert lines.take() == [{"level": "ERROR", "text": "a: %d"}]
