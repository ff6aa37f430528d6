"""Frames, encrypted links, and links in memory."""
