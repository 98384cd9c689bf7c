"""One small program in Tapeloop and in other frameworks; `docs/coming-from.md` shows them."""
