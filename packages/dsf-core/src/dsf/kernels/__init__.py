"""Which programs serve which intents: kernels, their limits, the choice between them, and the fallback compiler."""
