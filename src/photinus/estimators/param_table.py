"""Tables of Params: each Param's name and the job setting that it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.ml.param import TypeConverters

from photinus.core.errors import UsageError
from photinus.core.settings import to_dict
from photinus.estimators.converters import (
    to_encoders,
    to_function,
    to_json,
    to_list,
    to_loss,
    to_metrics,
    to_module,
    to_names,
    to_optimizer,
    to_rate,
    to_shuffle,
    to_start,
    to_strategy,
)
from photinus.models.schedules import Schedule


def same(value: Any) -> Any:  # noqa: ANN401 - any Param's value
    """Returns the value as it is."""
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One Param."""

    name: str
    meaning: str
    convert: Callable[[Any], Any]
    """From what a user may give to what is kept, which is always plain JSON."""
    place: str = ""
    """Where it stands in the plain job, with dots; "" for what is no setting of a job."""
    default: Any = None
    """None where the job's own default is taken, if it has one."""
    shape: Callable[[Any], Any] = same
    """From what is kept to what the plain job holds."""


def _falling(peak: float) -> dict[str, Any]:
    return to_dict(Schedule(((0.0, peak), (0.7, peak), (1.0, peak / 20))))


def _usual(rate: Any) -> Any:  # noqa: ANN401 - a number, or a Schedule's plain values
    """Returns a rate of the usual shape from its highest; a Schedule as it is."""
    return to_dict(Schedule.usual(rate, warm_up=0.01)) if isinstance(rate, float) else rate


def _cosine(rate: Any) -> Any:  # noqa: ANN401 - a number, or a Schedule's plain values
    """Returns a rate that rises to a number and falls again; a Schedule as it is."""
    return to_dict(Schedule.cosine(rate, warm_up=0.01)) if isinstance(rate, float) else rate


_Text, _Whole, _Number = TypeConverters.toString, TypeConverters.toInt, TypeConverters.toFloat


def _workers(value: Any) -> int:  # noqa: ANN401 - what a user may give
    """Returns how many workers; 0 for as many as slots are free."""
    count: int = _Whole(value)
    if count < 0:
        do = "name how many tasks shall train, or 0 for as many as slots are free"
        raise UsageError("numWorkers must be at least 0", got=count, do=do)
    return count


_FEATURES = Row(
    name="featuresCol",
    meaning="the column of features: ML vectors, arrays of numbers, bytes, images or numbers; or a "
    "list of columns of numbers",
    convert=to_names,
    default="features",
)
_BATCH = Row(
    name="predictBatchSize",
    meaning="rows that go through the network at once in transform",
    convert=_Whole,
    default=512,
)
_METRICS = Row(
    name="metrics",
    meaning="what evaluate tells beside the loss: accuracy, precision, recall, f1, top5, rmse, "
    "mae, r2",
    convert=to_metrics,
    default=(),
)

OUTPUT_ROWS = (
    _FEATURES,
    Row(
        name="labelCol",
        meaning="the column of the target, or a list of columns of numbers; '' where the features "
        "are the target",
        convert=to_names,
        default="label",
    ),
    Row(
        name="predictionCol",
        meaning="the new column of what the module returns: a number, or an array; '' for none",
        convert=_Text,
        default="prediction",
    ),
    _BATCH,
    _METRICS,
)
"""What the trained models of numbers share with the estimators."""

MODEL_ROWS = (
    _FEATURES,
    Row(
        name="labelCol",
        meaning="the column of labels, 0..numClasses-1; of arrays, or a list of columns, for "
        "several labels",
        convert=to_names,
        default="label",
    ),
    Row(
        name="predictionCol",
        meaning="the new column of the likeliest class; '' for none",
        convert=_Text,
        default="prediction",
    ),
    Row(
        name="probabilityCol",
        meaning="the new column of the classes' probabilities, a vector; '' for none",
        convert=_Text,
        default="probability",
    ),
    Row(
        name="rawPredictionCol",
        meaning="the new column of the network's outputs before the softmax; '' for none",
        convert=_Text,
        default="rawPrediction",
    ),
    _BATCH,
    _METRICS,
)
"""What the trained classifiers share with the estimators."""

_CLASSES = Row(
    name="numClasses",
    meaning="the number of classes; default: from the column, the module or the labels",
    convert=_Whole,
)

_JOB_ROWS = (
    Row(
        name="scale",
        meaning="features are read as float32(features) * scale; for bytes use 1/255",
        convert=_Number,
        place="data.scale",
    ),
    Row(
        name="strategy",
        meaning="how the workers agree: a recipe's name, its JSON or the object; stored as JSON",
        convert=to_strategy,
        place="strategy",
        shape=json.loads,
    ),
    Row(
        name="numWorkers",
        meaning="tasks of Spark that train at the same time; 0: as many as slots are free, at most "
        "one for each row of a batch",
        convert=_workers,
        place="workers",
        default=0,
        shape=int,
    ),
    Row(
        name="shuffle",
        meaning="auto: uneven or sorted partitions are redistributed once; False: left as they are",
        convert=to_shuffle,
        place="shuffle",
    ),
    Row(
        name="share",
        meaning="rows: all rows are used equally often; fastest: a faster worker does more",
        convert=_Text,
        place="share",
    ),
    Row(
        name="numThreads",
        meaning="threads of each worker",
        convert=_Whole,
        place="threads",
    ),
    Row(
        name="device",
        meaning="what the workers compute on: cpu, cuda, cuda:1, xpu, mps, opencl, "
        "opencl:PLATFORM:N, stand-in or auto, the fastest one that each has; or a list: one for "
        "each worker",
        convert=to_names,
        place="device",
    ),
    Row(
        name="bandwidth",
        meaning="bytes that each worker may send in a second; default: no limit",
        convert=_Number,
        place="bandwidth",
    ),
    Row(
        name="cpuShare",
        meaning="processors that each worker may use on average, such as 0.5; default: no limit",
        convert=_Number,
        place="cpu_share",
    ),
    Row(
        name="memory",
        meaning="bytes of memory that each worker may take; default: no limit",
        convert=_Whole,
        place="memory",
    ),
    Row(
        name="priority",
        meaning="the higher gets seats first; a fit of a lower one yields seats to it",
        convert=_Whole,
        place="priority",
    ),
    Row(
        name="weight",
        meaning="fits of one priority that set a weight share the seats in proportion to it; "
        "default: the fit shares no seats with them",
        convert=_Number,
        place="weight",
    ),
    Row(
        name="jobsFolder",
        meaning="a folder through which fits of several applications share seats; '' for none",
        convert=_Text,
        place="jobs_folder",
    ),
    Row(
        name="deadlineSeconds",
        meaning="seconds after which training must end: the fewest workers that are fast enough "
        "train, numWorkers at most; default: no limit",
        convert=_Number,
        place="deadline_seconds",
    ),
    Row(
        name="seed",
        meaning="determines first weights, order of rows and all random numbers",
        convert=_Whole,
        place="seed",
    ),
    Row(
        name="security",
        meaning="tls, or none: unencrypted frames, for a network that is trusted as a whole",
        convert=_Text,
        place="security",
    ),
    Row(
        name="runDir",
        meaning="a folder in which every fit keeps its run: journal, checkpoints, report; "
        "'' keeps none",
        convert=_Text,
        default="",
    ),
    Row(
        name="checkpointSeconds",
        meaning="seconds between two checkpoints",
        convert=_Number,
        place="checkpoint_seconds",
    ),
    Row(
        name="validation",
        meaning="the share of the rows that are set aside and measured on once an epoch",
        convert=_Number,
        place="validation",
    ),
    Row(
        name="validationIndicatorCol",
        meaning="a boolean column: its rows are measured on once an epoch, and not trained on; "
        "'' for none",
        convert=_Text,
        place="data.validation",
    ),
    Row(
        name="patience",
        meaning="early stopping: so many measurements without a better one end a phase, at its "
        "best point; 0: none",
        convert=_Whole,
        place="patience",
    ),
    Row(
        name="start",
        meaning="the folder of a run or a saved model, a safetensors file or a state_dict to start "
        "from",
        convert=to_start,
        place="start",
    ),
)

DBN_ROWS = (
    *MODEL_ROWS,
    _CLASSES,
    *_JOB_ROWS,
    Row(
        name="hiddenSizes",
        meaning="units of each hidden layer, from the inputs up",
        convert=TypeConverters.toListInt,
        place="model.hidden",
    ),
    Row(
        name="preTrainEpochs",
        meaning="passes over the rows in which each layer is trained as an RBM; 0 for none",
        convert=_Number,
        place="model.pretraining.epochs",
    ),
    Row(
        name="preTrainBatchSize",
        meaning="rows of one step of all workers together in the pre-training",
        convert=_Whole,
        place="model.pretraining.batch_size",
    ),
    Row(
        name="preTrainLearningRate",
        meaning="the pre-training's rate: constant, then falling to a twentieth; default: 0.1",
        convert=_Number,
        place="model.pretraining.lr",
        shape=_falling,
    ),
    Row(
        name="visibleUnits",
        meaning="the inputs: bernoulli (0..1), or gaussian (mean 0, variance 1)",
        convert=_Text,
        place="model.pretraining.visible",
    ),
    Row(
        name="fineTuneEpochs",
        meaning="passes over the rows in which all layers are trained together",
        convert=_Number,
        place="model.fine_tuning.epochs",
    ),
    Row(
        name="batchSize",
        meaning="rows of one step of all workers together in the fine-tuning",
        convert=_Whole,
        place="model.fine_tuning.batch_size",
    ),
    Row(
        name="optimizer",
        meaning="the fine-tuning's optimizer: one of torch's by name, or package.module:Class",
        convert=to_optimizer,
        place="model.fine_tuning.optimizer",
    ),
    Row(
        name="learningRate",
        meaning="the fine-tuning's highest rate, from which it falls by a cosine; default: the "
        "optimizer's own",
        convert=_Number,
        place="model.fine_tuning.lr",
        shape=_cosine,
    ),
    Row(
        name="weightDecay",
        meaning="the fine-tuning's weight decay",
        convert=_Number,
        place="model.fine_tuning.weight_decay",
    ),
    Row(
        name="inputDropout",
        meaning="the share of the inputs left out in each step of the fine-tuning",
        convert=_Number,
        place="model.fine_tuning.dropout_input",
    ),
    Row(
        name="hiddenDropout",
        meaning="the share of each hidden layer's units left out in each step of the fine-tuning; "
        "in a deeper network the last one repeats",
        convert=TypeConverters.toListFloat,
        place="model.fine_tuning.dropout_hidden",
    ),
    Row(
        name="labelSmoothing",
        meaning="the share of a label given to all classes alike",
        convert=_Number,
        place="model.fine_tuning.label_smoothing",
    ),
    Row(
        name="preTrainStrategy",
        meaning="how the workers agree in the pre-training; default: strategy",
        convert=to_strategy,
        place="strategies.pretraining",
        shape=json.loads,
    ),
    Row(
        name="fineTuneStrategy",
        meaning="how the workers agree in the fine-tuning; default: strategy",
        convert=to_strategy,
        place="strategies.fine-tune",
        shape=json.loads,
    ),
    Row(
        name="preTrainDevice",
        meaning="what the pre-training computes on; default: device",
        convert=_Text,
        place="model.pretraining.device",
    ),
    Row(
        name="fineTuneDevice",
        meaning="what the fine-tuning computes on; default: device",
        convert=_Text,
        place="model.fine_tuning.device",
    ),
    Row(
        name="precision",
        meaning="float32, bfloat16, or auto: bfloat16 where it is 1.5 times faster",
        convert=_Text,
        place="model.precision",
    ),
)

_MODULE_ROWS = (
    *_JOB_ROWS,
    Row(
        name="inputs",
        meaning="a dict: parameter of the module's forward -> column, or columns of numbers that "
        "are stacked; featuresCol is then not read",
        convert=to_json,
        place="data.inputs",
    ),
    Row(
        name="encoders",
        meaning="a dict: input -> package.module:function of a list of the column's values, which "
        "makes arrays of them; or image, which decodes JPEG and PNG; or a pre-trained tokenizer's "
        "folder or package",
        convert=to_encoders,
        place="data.encoders",
    ),
    Row(
        name="collate",
        meaning="package.module:function of a list of rows, dicts by input: makes a batch, in the "
        "place of padding",
        convert=to_function,
        place="data.collate",
    ),
    Row(
        name="weightCol",
        meaning="the column that says how much each row counts in the loss; '' for none",
        convert=_Text,
        place="data.weight",
    ),
    Row(
        name="module",
        meaning="package.module:factory (or the function or class itself), importable on every "
        "worker; returns a torch module from features [B, ...] to outputs [B, ...], or a "
        "photinus.Model",
        convert=to_module,
        place="model.module",
    ),
    Row(
        name="moduleArgs",
        meaning="the factory's keyword arguments, plain JSON values",
        convert=to_json,
        place="model.arguments",
    ),
    Row(
        name="loss",
        meaning="cross_entropy, multi_margin, binary_cross_entropy, mse, l1, huber, poisson, "
        "in_batch, or package.module:function of outputs and labels (or the function itself)",
        convert=to_loss,
        place="model.loss",
    ),
    Row(
        name="optimizer",
        meaning="one of torch's by name, package.module:Class, or the class itself",
        convert=to_optimizer,
        place="model.optimizer",
    ),
    Row(
        name="optimizerArgs",
        meaning="the optimizer's keyword arguments, plain JSON values; the rate is learningRate",
        convert=to_json,
        place="model.settings",
    ),
    Row(
        name="perTensor",
        meaning="give the optimizer each tensor in its own shape, not as flat vectors; adafactor "
        "and muon need it",
        convert=TypeConverters.toBoolean,
        place="model.per_tensor",
    ),
    Row(
        name="learningRate",
        meaning="the highest rate, which falls to 0 in the end, or a Schedule; default: the "
        "optimizer's own",
        convert=to_rate,
        place="model.lr",
        shape=_usual,
    ),
    Row(
        name="learningRateScale",
        meaning="none; linear: the rate times batchSize/32; sqrt: times its root; with a warm-up",
        convert=_Text,
        place="model.lr_scale",
    ),
    Row(
        name="batchSize",
        meaning="rows of one step of all workers together",
        convert=_Whole,
        place="model.batch_size",
    ),
    Row(
        name="accumulate",
        meaning="parts in which a worker computes its rows of a step, one after another, to save "
        "memory",
        convert=_Whole,
        place="model.accumulate",
    ),
    Row(
        name="epochs",
        meaning="passes over the rows",
        convert=_Number,
        place="model.epochs",
    ),
    Row(
        name="activationMemory",
        meaning="keep; recompute: forward passes are run again; offload: activations go to the "
        "host, from there to a file; auto: the first of them that stays under activationBytes",
        convert=_Text,
        place="model.activation_memory",
    ),
    Row(
        name="activationBytes",
        meaning="bytes that a worker's step may need beside parameters and optimizer; more is "
        "refused",
        convert=_Whole,
        place="model.activation_bytes",
    ),
    Row(
        name="cudaGraph",
        meaning="on a CUDA device: a step is recorded once for each shape of a batch, and "
        "repeated; for modules whose forward pass does the same work for every batch",
        convert=TypeConverters.toBoolean,
        place="model.cuda_graph",
    ),
    Row(
        name="maxSteps",
        meaning="steps after which the training ends, instead of epochs; 0: by epochs",
        convert=_Whole,
        place="model.max_steps",
    ),
    Row(
        name="clip",
        meaning="the largest norm of a step's gradient: a longer one is scaled down; 0: none",
        convert=_Number,
        place="model.clip",
    ),
    Row(
        name="l2",
        meaning="parameters' names or patterns and λ: λ/2·‖w‖² is added to the loss",
        convert=to_json,
        place="model.l2",
    ),
    Row(
        name="movingAverage",
        meaning="decay of a moving average of the weights, such as 0.9999; the model is measured "
        "and used with it; 0: none",
        convert=_Number,
        place="model.average",
    ),
    Row(
        name="frozen",
        meaning="parameters' names or patterns that are not trained, such as encoder.*",
        convert=to_list,
        place="model.frozen",
    ),
    Row(
        name="reads",
        meaning="package.module:function of features and random draws that makes what the module "
        "reads: augmentation",
        convert=to_function,
        place="model.reads",
    ),
    Row(
        name="precision",
        meaning="float32, bfloat16 or float16 for products and convolutions, or auto: bfloat16 "
        "where it is 1.5 times as fast",
        convert=_Text,
        place="model.precision",
    ),
    Row(
        name="memoryFormat",
        meaning="of images: contiguous, channels_last, or auto: the faster one",
        convert=_Text,
        place="model.memory",
    ),
    Row(
        name="phase",
        meaning="the training's name in a report; random numbers depend on it",
        convert=_Text,
        place="model.name",
    ),
)


def _measuring(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Returns a model's rows as its estimator has them, which measures while it trains."""
    also = f"{_METRICS.meaning}; also on rows set aside, there package.module:function, too"
    named = replace(_METRICS, place="model.metrics", meaning=also)
    return tuple(named if row is _METRICS else row for row in rows)


ESTIMATOR_ROWS = (*_measuring(OUTPUT_ROWS), *_MODULE_ROWS)
CLASSIFIER_ROWS = (
    *_measuring(MODEL_ROWS),
    _CLASSES,
    *_MODULE_ROWS,
    Row(
        name="labelSmoothing",
        meaning="the share of a label given to all classes alike, under cross_entropy",
        convert=_Number,
        place="model.label_smoothing",
    ),
)

_OF_A_RUN = (
    "strategy",
    "numWorkers",
    "numThreads",
    "device",
    "bandwidth",
    "cpuShare",
    "memory",
    "priority",
    "weight",
    "jobsFolder",
    "deadlineSeconds",
    "seed",
    "security",
    "runDir",
    "checkpointSeconds",
)
RUN_ROWS = tuple(row for row in _JOB_ROWS if row.name in _OF_A_RUN)
"""What estimators of another kind share with those of networks."""
