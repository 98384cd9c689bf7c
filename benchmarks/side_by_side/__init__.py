"""One small program, written with Tapeloop and with what readers may come from; `docs/coming-from.md` shows them."""
