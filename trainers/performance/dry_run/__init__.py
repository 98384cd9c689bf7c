"""Looks at a step of training before anything is made: what it computes, holds and sends, and how long it takes."""
