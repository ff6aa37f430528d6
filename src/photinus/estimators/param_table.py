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
from photinus.estimators.thresholds import to_thresholds
from photinus.models.schedules import Schedule


def identity(value: Any) -> Any:  # noqa: ANN401 - any Param's value
    """Returns the value as it is."""
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class ParamRow:
    """One Param."""

    name: str
    meaning: str
    convert: Callable[[Any], Any]
    """From what a user may give to what is kept, which is always plain JSON."""
    job_path: str = ""
    """Where it stands in the plain job, with dots; "" for what is no setting of a job."""
    default: Any = None
    """None where the job's own default is taken, if it has one."""
    to_job: Callable[[Any], Any] = identity
    """From what is kept to what the plain job holds."""


def _falling_schedule(peak: float) -> dict[str, Any]:
    return to_dict(Schedule(((0.0, peak), (0.7, peak), (1.0, peak / 20))))


def _usual_schedule(rate: Any) -> Any:  # noqa: ANN401 - a number, or a Schedule's plain values
    """Returns a rate of the usual shape from its highest; a Schedule as it is."""
    return to_dict(Schedule.usual(rate, warm_up=0.01)) if isinstance(rate, float) else rate


def _cosine_schedule(rate: Any) -> Any:  # noqa: ANN401 - a number, or a Schedule's plain values
    """Returns a rate that rises to a number and falls again; a Schedule as it is."""
    return to_dict(Schedule.cosine(rate, warm_up=0.01)) if isinstance(rate, float) else rate


_to_string, _to_int, _to_float = (
    TypeConverters.toString,
    TypeConverters.toInt,
    TypeConverters.toFloat,
)


def _to_workers(value: Any) -> int:  # noqa: ANN401 - what a user may give
    """Returns how many workers; 0 for as many as slots are free."""
    count: int = _to_int(value)
    if count < 0:
        do = "name how many tasks shall train, or 0 for as many as slots are free"
        raise UsageError("numWorkers must be at least 0", got=count, do=do)
    return count


_FEATURES_ROW = ParamRow(
    name="featuresCol",
    meaning="the column of features: ML vectors, arrays of numbers, bytes, images or numbers; or a "
    "list of columns of numbers",
    convert=to_names,
    default="features",
)
_BATCH_ROW = ParamRow(
    name="predictBatchSize",
    meaning="rows that go through the network at once in transform",
    convert=_to_int,
    default=512,
)
_METRICS_ROW = ParamRow(
    name="metrics",
    meaning="what evaluate tells beside the loss: accuracy, precision, recall, f1, top5, rmse, "
    "mae, r2",
    convert=to_metrics,
    default=(),
)

OUTPUT_ROWS = (
    _FEATURES_ROW,
    ParamRow(
        name="labelCol",
        meaning="the column of the target, or a list of columns of numbers; '' where the features "
        "are the target",
        convert=to_names,
        default="label",
    ),
    ParamRow(
        name="predictionCol",
        meaning="the new column of what the module returns: a number, or an array; '' for none",
        convert=_to_string,
        default="prediction",
    ),
    _BATCH_ROW,
    _METRICS_ROW,
)
"""What the trained models of numbers share with the estimators."""

MODEL_ROWS = (
    _FEATURES_ROW,
    ParamRow(
        name="labelCol",
        meaning="the column of labels, 0..numClasses-1; of arrays, or a list of columns, for "
        "several labels; of arrays, for a label of each token",
        convert=to_names,
        default="label",
    ),
    ParamRow(
        name="predictionCol",
        meaning="the new column of the likeliest class, or by thresholds; '' for none",
        convert=_to_string,
        default="prediction",
    ),
    ParamRow(
        name="probabilityCol",
        meaning="the new column of the classes' probabilities, a vector; '' for none",
        convert=_to_string,
        default="probability",
    ),
    ParamRow(
        name="rawPredictionCol",
        meaning="the new column of the network's outputs before the softmax; '' for none",
        convert=_to_string,
        default="rawPrediction",
    ),
    ParamRow(
        name="thresholds",
        meaning="a number for each class: the one with the largest probability / threshold is "
        "predicted; default: the likeliest",
        convert=to_thresholds,
    ),
    _BATCH_ROW,
    _METRICS_ROW,
)
"""What the trained classifiers share with the estimators."""

_CLASSES_ROW = ParamRow(
    name="numClasses",
    meaning="the number of classes; default: from the column, the module or the labels",
    convert=_to_int,
)

_JOB_ROWS = (
    ParamRow(
        name="scale",
        meaning="features are read as float32(features) * scale; for bytes use 1/255",
        convert=_to_float,
        job_path="data.scale",
    ),
    ParamRow(
        name="strategy",
        meaning="how the workers agree: a recipe's name, its JSON or the object; stored as JSON",
        convert=to_strategy,
        job_path="strategy",
        to_job=json.loads,
    ),
    ParamRow(
        name="numWorkers",
        meaning="tasks of Spark that train at the same time; 0: as many as slots are free, at most "
        "one for each row of a batch",
        convert=_to_workers,
        job_path="workers",
        default=0,
        to_job=int,
    ),
    ParamRow(
        name="shuffle",
        meaning="auto: uneven or sorted partitions are redistributed once; False: left as they are",
        convert=to_shuffle,
        job_path="shuffle",
    ),
    ParamRow(
        name="share",
        meaning="rows: all rows are used equally often; fastest: a faster worker does more",
        convert=_to_string,
        job_path="share",
    ),
    ParamRow(
        name="numThreads",
        meaning="threads of each worker",
        convert=_to_int,
        job_path="threads",
    ),
    ParamRow(
        name="device",
        meaning="what the workers compute on: cpu, cuda, cuda:1, xpu, mps, opencl, "
        "opencl:PLATFORM:N, stand-in or auto, the fastest one that each has; or a list: one for "
        "each worker",
        convert=to_names,
        job_path="device",
    ),
    ParamRow(
        name="bandwidth",
        meaning="bytes that each worker may send in a second; default: no limit",
        convert=_to_float,
        job_path="bandwidth",
    ),
    ParamRow(
        name="cpuShare",
        meaning="processors that each worker may use on average, such as 0.5; default: no limit",
        convert=_to_float,
        job_path="cpu_share",
    ),
    ParamRow(
        name="memory",
        meaning="bytes of memory that each worker may take; default: no limit",
        convert=_to_int,
        job_path="memory",
    ),
    ParamRow(
        name="priority",
        meaning="the higher gets seats first; a fit of a lower one yields seats to it",
        convert=_to_int,
        job_path="priority",
    ),
    ParamRow(
        name="weight",
        meaning="fits of one priority that set a weight share the seats in proportion to it; "
        "default: the fit shares no seats with them",
        convert=_to_float,
        job_path="weight",
    ),
    ParamRow(
        name="jobsFolder",
        meaning="a folder through which fits of several applications share seats; '' for none",
        convert=_to_string,
        job_path="jobs_folder",
    ),
    ParamRow(
        name="deadlineSeconds",
        meaning="seconds after which training must end: the fewest workers that are fast enough "
        "train, numWorkers at most; default: no limit",
        convert=_to_float,
        job_path="deadline_seconds",
    ),
    ParamRow(
        name="seed",
        meaning="determines first weights, order of rows and all random numbers",
        convert=_to_int,
        job_path="seed",
    ),
    ParamRow(
        name="security",
        meaning="tls, or none: unencrypted frames, for a network that is trusted as a whole",
        convert=_to_string,
        job_path="security",
    ),
    ParamRow(
        name="runDir",
        meaning="a folder or an address in which every fit keeps its run: journal, checkpoints, "
        "report; '' keeps none",
        convert=_to_string,
        default="",
    ),
    ParamRow(
        name="checkpointSeconds",
        meaning="seconds between two checkpoints",
        convert=_to_float,
        job_path="checkpoint_seconds",
    ),
    ParamRow(
        name="leaseSeconds",
        meaning="a worker is lost after so many seconds without a sign of life; default: 5",
        convert=_to_float,
        job_path="lease_seconds",
    ),
    ParamRow(
        name="validation",
        meaning="the share of the rows that are set aside and measured on once an epoch, or at "
        "most 20 times where epochs is not set",
        convert=_to_float,
        job_path="validation",
    ),
    ParamRow(
        name="validationIndicatorCol",
        meaning="a boolean column: its rows are measured on once an epoch, and not trained on; "
        "'' for none",
        convert=_to_string,
        job_path="data.validation",
    ),
    ParamRow(
        name="patience",
        meaning="early stopping: so many measurements without a better one end a phase, at its "
        "best point; 0: none",
        convert=_to_int,
        job_path="patience",
    ),
    ParamRow(
        name="start",
        meaning="the folder of a run or a saved model, a safetensors file or a state_dict to start "
        "from",
        convert=to_start,
        job_path="start",
    ),
)

DBN_ROWS = (
    *MODEL_ROWS,
    _CLASSES_ROW,
    *_JOB_ROWS,
    ParamRow(
        name="hiddenSizes",
        meaning="units of each hidden layer, from the inputs up",
        convert=TypeConverters.toListInt,
        job_path="model.hidden",
    ),
    ParamRow(
        name="preTrainEpochs",
        meaning="passes over the rows in which each layer is trained as an RBM; 0 for none; "
        "default: as many as make 2,000 steps, from 20 to 200",
        convert=_to_float,
        job_path="model.pretraining.epochs",
    ),
    ParamRow(
        name="preTrainBatchSize",
        meaning="rows of one step of all workers together in the pre-training",
        convert=_to_int,
        job_path="model.pretraining.batch_size",
    ),
    ParamRow(
        name="preTrainLearningRate",
        meaning="the pre-training's rate: constant, then falling to a twentieth; default: 0.1",
        convert=_to_float,
        job_path="model.pretraining.lr",
        to_job=_falling_schedule,
    ),
    ParamRow(
        name="visibleUnits",
        meaning="the inputs: bernoulli (0..1), or gaussian (mean 0, variance 1)",
        convert=_to_string,
        job_path="model.pretraining.visible",
    ),
    ParamRow(
        name="fineTuneEpochs",
        meaning="passes over the rows in which all layers are trained together; default: as many "
        "as make 2,000 steps, from 60 to 200",
        convert=_to_float,
        job_path="model.fine_tuning.epochs",
    ),
    ParamRow(
        name="batchSize",
        meaning="rows of one step of all workers together in the fine-tuning",
        convert=_to_int,
        job_path="model.fine_tuning.batch_size",
    ),
    ParamRow(
        name="optimizer",
        meaning="the fine-tuning's optimizer: one of torch's by name, or package.module:Class",
        convert=to_optimizer,
        job_path="model.fine_tuning.optimizer",
    ),
    ParamRow(
        name="learningRate",
        meaning="the fine-tuning's highest rate, from which it falls by a cosine; default: the "
        "optimizer's own",
        convert=_to_float,
        job_path="model.fine_tuning.lr",
        to_job=_cosine_schedule,
    ),
    ParamRow(
        name="weightDecay",
        meaning="the fine-tuning's weight decay",
        convert=_to_float,
        job_path="model.fine_tuning.weight_decay",
    ),
    ParamRow(
        name="inputDropout",
        meaning="the share of the inputs left out in each step of the fine-tuning",
        convert=_to_float,
        job_path="model.fine_tuning.dropout_input",
    ),
    ParamRow(
        name="hiddenDropout",
        meaning="the share of each hidden layer's units left out in each step of the fine-tuning; "
        "in a deeper network the last one repeats",
        convert=TypeConverters.toListFloat,
        job_path="model.fine_tuning.dropout_hidden",
    ),
    ParamRow(
        name="labelSmoothing",
        meaning="the share of a label given to all classes alike",
        convert=_to_float,
        job_path="model.fine_tuning.label_smoothing",
    ),
    ParamRow(
        name="preTrainStrategy",
        meaning="how the workers agree in the pre-training; default: strategy",
        convert=to_strategy,
        job_path="strategies.pretraining",
        to_job=json.loads,
    ),
    ParamRow(
        name="fineTuneStrategy",
        meaning="how the workers agree in the fine-tuning; default: strategy",
        convert=to_strategy,
        job_path="strategies.fine-tune",
        to_job=json.loads,
    ),
    ParamRow(
        name="preTrainDevice",
        meaning="what the pre-training computes on; default: device",
        convert=_to_string,
        job_path="model.pretraining.device",
    ),
    ParamRow(
        name="fineTuneDevice",
        meaning="what the fine-tuning computes on; default: device",
        convert=_to_string,
        job_path="model.fine_tuning.device",
    ),
    ParamRow(
        name="precision",
        meaning="float32, bfloat16, or auto: bfloat16 where it is 1.5 times faster",
        convert=_to_string,
        job_path="model.precision",
    ),
)

_MODULE_ROWS = (
    *_JOB_ROWS,
    ParamRow(
        name="inputs",
        meaning="a dict: parameter of the module's forward -> column, or columns of numbers that "
        "are stacked; featuresCol is then not read",
        convert=to_json,
        job_path="data.inputs",
    ),
    ParamRow(
        name="encoders",
        meaning="a dict: input -> package.module:function of a list of the column's values, which "
        "makes arrays of them; or image, which decodes JPEG and PNG; or a pre-trained tokenizer's "
        "folder or package",
        convert=to_encoders,
        job_path="data.encoders",
    ),
    ParamRow(
        name="collate",
        meaning="package.module:function of a list of rows, dicts by input: makes a batch, in the "
        "place of padding",
        convert=to_function,
        job_path="data.collate",
    ),
    ParamRow(
        name="weightCol",
        meaning="the column that says how much each row counts in the loss; '' for none",
        convert=_to_string,
        job_path="data.weight",
    ),
    ParamRow(
        name="module",
        meaning="package.module:factory (or the function or class itself), importable on every "
        "worker; returns a torch module from features [B, ...] to outputs [B, ...], or a "
        "photinus.Model",
        convert=to_module,
        job_path="model.module",
    ),
    ParamRow(
        name="moduleArgs",
        meaning="the factory's keyword arguments, plain JSON values",
        convert=to_json,
        job_path="model.arguments",
    ),
    ParamRow(
        name="loss",
        meaning="cross_entropy, multi_margin, binary_cross_entropy, token_cross_entropy, mse, l1, "
        "huber, poisson, in_batch, or package.module:function of outputs and labels (or the "
        "function itself)",
        convert=to_loss,
        job_path="model.loss",
    ),
    ParamRow(
        name="optimizer",
        meaning="one of torch's by name, package.module:Class, or the class itself",
        convert=to_optimizer,
        job_path="model.optimizer",
    ),
    ParamRow(
        name="optimizerArgs",
        meaning="the optimizer's keyword arguments, plain JSON values; the rate is learningRate",
        convert=to_json,
        job_path="model.settings",
    ),
    ParamRow(
        name="decays",
        meaning="what the optimizer's weight decay acts on: all, as in torch; or weights: tensors "
        "of two dimensions and more, so no biases and norms",
        convert=_to_string,
        job_path="model.decays",
    ),
    ParamRow(
        name="perTensor",
        meaning="give the optimizer each tensor in its own shape, not as flat vectors; adafactor "
        "and muon need it",
        convert=TypeConverters.toBoolean,
        job_path="model.per_tensor",
    ),
    ParamRow(
        name="learningRate",
        meaning="the highest rate, which falls to 0 in the end, or a Schedule; default: the "
        "optimizer's own, and a twentieth of it for a pre-trained model of transformers",
        convert=to_rate,
        job_path="model.lr",
        to_job=_usual_schedule,
    ),
    ParamRow(
        name="learningRateScale",
        meaning="none; linear: the rate times batchSize/32; sqrt: times its root; with a warm-up",
        convert=_to_string,
        job_path="model.lr_scale",
    ),
    ParamRow(
        name="batchSize",
        meaning="rows of one step of all workers together",
        convert=_to_int,
        job_path="model.batch_size",
    ),
    ParamRow(
        name="accumulate",
        meaning="parts in which a worker computes its rows of a step, one after another, to save "
        "memory",
        convert=_to_int,
        job_path="model.accumulate",
    ),
    ParamRow(
        name="epochs",
        meaning="passes over the rows; default: as many as make 2,000 steps, from 1 to 200; with a "
        "start, or a module that transformers has loaded, 3",
        convert=_to_float,
        job_path="model.epochs",
    ),
    ParamRow(
        name="activationMemory",
        meaning="keep; recompute: forward passes are run again; offload: activations go to the "
        "host, from there to a file; auto: the first of them that stays under activationBytes",
        convert=_to_string,
        job_path="model.activation_memory",
    ),
    ParamRow(
        name="activationBytes",
        meaning="bytes that a worker's step may need beside parameters and optimizer; more is "
        "refused",
        convert=_to_int,
        job_path="model.activation_bytes",
    ),
    ParamRow(
        name="cudaGraph",
        meaning="on a CUDA device: a step is recorded once for each shape of a batch, and "
        "repeated; for modules whose forward pass does the same work for every batch",
        convert=TypeConverters.toBoolean,
        job_path="model.cuda_graph",
    ),
    ParamRow(
        name="maxSteps",
        meaning="steps after which the training ends, instead of epochs; 0: by epochs",
        convert=_to_int,
        job_path="model.max_steps",
    ),
    ParamRow(
        name="clip",
        meaning="the largest norm of a step's gradient: a longer one is scaled down; 0: none",
        convert=_to_float,
        job_path="model.clip",
    ),
    ParamRow(
        name="l2",
        meaning="parameters' names or patterns and λ: λ/2·‖w‖² is added to the loss",
        convert=to_json,
        job_path="model.l2",
    ),
    ParamRow(
        name="movingAverage",
        meaning="decay of a moving average of the weights, such as 0.9999; the model is measured "
        "and used with it; 0: none",
        convert=_to_float,
        job_path="model.average",
    ),
    ParamRow(
        name="frozen",
        meaning="parameters' names or patterns that are not trained, such as encoder.*",
        convert=to_list,
        job_path="model.frozen",
    ),
    ParamRow(
        name="reads",
        meaning="package.module:function of features and random draws that makes what the module "
        "reads: augmentation",
        convert=to_function,
        job_path="model.reads",
    ),
    ParamRow(
        name="precision",
        meaning="float32, bfloat16 or float16 for products and convolutions, or auto: bfloat16 "
        "where it is 1.5 times as fast",
        convert=_to_string,
        job_path="model.precision",
    ),
    ParamRow(
        name="memoryFormat",
        meaning="of images: contiguous, channels_last, or auto: the faster one",
        convert=_to_string,
        job_path="model.memory",
    ),
    ParamRow(
        name="phase",
        meaning="the training's name in a report; random numbers depend on it",
        convert=_to_string,
        job_path="model.name",
    ),
)


def _with_training_metrics(rows: tuple[ParamRow, ...]) -> tuple[ParamRow, ...]:
    """Returns a model's rows as its estimator has them, which measures while it trains."""
    meaning = f"{_METRICS_ROW.meaning}; also on rows set aside, there package.module:function, too"
    metrics_row = replace(_METRICS_ROW, job_path="model.metrics", meaning=meaning)
    return tuple(metrics_row if row is _METRICS_ROW else row for row in rows)


ESTIMATOR_ROWS = (*_with_training_metrics(OUTPUT_ROWS), *_MODULE_ROWS)
CLASSIFIER_ROWS = (
    *_with_training_metrics(MODEL_ROWS),
    _CLASSES_ROW,
    *_MODULE_ROWS,
    ParamRow(
        name="labelSmoothing",
        meaning="the share of a label given to all classes alike, under cross_entropy",
        convert=_to_float,
        job_path="model.label_smoothing",
    ),
)

_RUN_PARAMS = (
    "strategy",
    "numWorkers",
    "shuffle",
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
    "leaseSeconds",
)
RUN_ROWS = tuple(row for row in _JOB_ROWS if row.name in _RUN_PARAMS)
"""What estimators of another kind share with those of networks."""
