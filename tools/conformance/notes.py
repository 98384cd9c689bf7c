"""Notes of the parts page: where a layer, loss or metric differs from its paper, PyTorch or scikit-learn."""

NOTES = {
    "LSTM": "One bias for input and state, the forget gates' begins at 1; PyTorch keeps two, from zero-mean draws.",
    "GRU": "The reset gate follows the product, as in PyTorch and cuDNN; in the paper it comes before.",
    "VanillaRNN": "One bias for input and state; PyTorch keeps two.",
    "rotary": "Turns value `i` with value `i + size / 2`; the paper turns neighbours.",
    "MultiHeadAttention": "A query that may look nowhere gets zeros; PyTorch's gets NaN.",
    "attend": "A query that may look nowhere gets zeros; PyTorch's gets NaN.",
    "LayerNorm": "`epsilon` is 1e-6, as in Flax; PyTorch's is 1e-5.",
    "GroupNorm": "`epsilon` is 1e-6, as in Flax; PyTorch's is 1e-5.",
    "InstanceNorm": "`epsilon` is 1e-6, and there are a scale and an offset; PyTorch has 1e-5 and neither.",
    "BatchNorm": "The moving variance divides by n, as in Flax; the paper's and PyTorch's by n − 1. The averages are "
    "corrected for their start at zero. `decay` is 1 less PyTorch's `momentum`.",
    "SpectralNorm": "One power iteration an applied update, none in a forward pass; PyTorch iterates in each.",
    "AveragePool": "Padding doesn't count; in PyTorch it does, unless told otherwise.",
    "MaxPool": "A window with a NaN is NaN, as in PyTorch; TensorFlow passes over it.",
    "gelu": "The paper's approximation by tanh, as in GPT-2; PyTorch's is exact, unless told otherwise.",
    "PixelShuffle": "A pixel's channels lie together; PyTorch keeps the pixels of a channel together.",
    "Resize": "Pixels are areas, without antialiasing: PyTorch's `align_corners=False`. Computes in float32.",
    "softmax_cross_entropy": "With class weights (`label_weights`) and smoothing, a row counts by its label's "
    "weight as a "
    "whole; PyTorch weighs the smoothed share of each class by that class's own weight.",
    "label_weights": "The mean divides by the sum of the weights, as in PyTorch.",
    "huber": "PyTorch's `huber_loss`; its `smooth_l1_loss` is this divided by `delta`.",
    "triplet": "Distances are squared, as in the paper; PyTorch's aren't.",
    "kl_divergence": "From logits to probabilities, summed over classes: PyTorch's `batchmean`, which takes "
    "log-probabilities.",
    "dice": "The sums in the denominator are without squares; the paper squares them.",
    "ctc": "Infinite where no alignment exists, as in PyTorch without `zero_infinity`.",
    "top_k_accuracy": "Of equal logits the first counts as the largest.",
    "accuracy": "An answer with a NaN is wrong; `argmax` takes it for a class.",
    "Confusion": "Averages are over the classes that occur, a class never predicted with precision 0, as in "
    "scikit-learn's "
    "`macro` with `zero_division=0`.",
    "AUC": "`pr` is average precision, not the trapezoids' area.",
    "R2": "All elements are one set; scikit-learn averages over outputs.",
    "Frechet": "Covariances divide by weight − 1.",
    "ssim": "Variances under the window divide by its sum, as in the paper; scikit-image's are unbiased unless told "
    "otherwise.",
}
