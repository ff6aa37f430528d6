"""Estimators for Spark ML."""
