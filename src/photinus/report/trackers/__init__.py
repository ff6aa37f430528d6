"""Experiment trackers as callbacks: MLflow, TensorBoard, trackio."""
