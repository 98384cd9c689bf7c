"""What happens between chunks of steps: the base class, the standard hooks, and those that look at images."""

from trainers.hooks.base import Hook

__all__ = ["Hook"]
