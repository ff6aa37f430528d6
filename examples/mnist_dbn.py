"""A deep belief network on MNIST, trained by four workers on Spark: the main job in 15 lines."""

import photinus as ph


def main(engine="spark", epochs=1.0, hidden=(500, 500, 2000)):
    dropout = (0.2,) * len(hidden)
    job = ph.Job(
        model=ph.DBN(
            hidden=hidden,
            pretraining=ph.Pretraining(epochs=3 * epochs, batch_size=200),
            fine_tuning=ph.FineTuning(epochs=8 * epochs, batch_size=400, dropout_hidden=dropout),
        ),
        workers=4,
        engine=engine,
        strategy=ph.averaging(every=ph.Steps(15), outer=ph.Nesterov(lr=0.7, momentum=0.5)),
    )
    outcome = ph.train(job)
    low, high = outcome.interval
    print(f"test error {outcome.metrics['error']:.2%} (95 %: {low:.2%} to {high:.2%})")
    print(f"the report is {outcome.report}")
    return outcome


if __name__ == "__main__":
    main()
