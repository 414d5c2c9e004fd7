"""Requests over a chain of levels: scheduling, stops, statistics."""
