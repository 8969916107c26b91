"""Depth parametrisations: powers of depth and width in branches, learning rates, decays, epsilon and initial weights.

m_L is the ratio of residual blocks to those at `base_depth`, m_N the ratio of the widths. At the base all factors are 1, so
that every preset equals `sp`. The presets are one table with an exponent alpha: 1/2 for Depth-muP (Yang et al. 2023,
2310.02244), 1 for CompleteP (Dey et al. 2025, 2505.01618). Branches are multiplied by m_L^-alpha, and the factors are

| | rate, Adam | rate, SGD | epsilon | decay, AdamW | deviation at the start |
|---|---|---|---|---|---|
| embedding and its bias | 1 | m_N | 1 / m_N | 1 | 1 |
| weights of blocks | m_L^(alpha-1) / m_N | m_L^(2 alpha-1) | m_L^-alpha / m_N | m_N | 1 |
| biases of blocks | m_L^(alpha-1) | m_N m_L^(2 alpha-1) | m_L^-alpha / m_N | 1 | 1 |
| last weight | 1 / m_N | 1 / m_N | 1 | m_N | m_N^(-1/2) |
| last bias | 1 | 1 | 1 | 1 | 1 |

Multipliers, Adam's rates, and epsilon and decay of blocks were compared with Table 1 of 2505.01618, which has both alphas, and
with the branch `completep` of EleutherAI/nanoGPT-mup. Of 2310.02244 only the abstract was read. Differences:

- All inits here have variances of 1 / fan_in, which contains Table 1's 1 / m_N for blocks. The last weight is Table 1's, of
  constant variance, times its output multiplier 1 / m_N. Its row gives the same function, apart from decay in the objective.
- Biases of `init: uniform` are of order N^(-1/2) and keep it. LayerNorm has no gains. RN1 and RN2 have depth - 1 residual
  blocks, so m_L = (depth - 1) / (base_depth - 1).
- Epsilon outside blocks is not in Table 1. It is compared with the gradient, so that its factor is the gradient's.
- AdamW's decay is no part of the gradient. With other optimisers it is a term of the objective, which keeps its lambda.
- SGD is not in Table 1. A block's gradient is proportional to its multiplier m_L^-alpha, and so is the effect of its change on
  the output: over m_L blocks rate m_L^(1 - 2 alpha), which is constant for a rate of m_L^(2 alpha - 1). Adam's change has the
  size of its rate, which leaves rate m_L^(1 - alpha). In width, a number's gradient is 1 / m_N, except in the last layer. A
  weight of N inputs adds N such changes, whereas the embedding, of fixed inputs, and biases need a rate of m_N.
"""

from dataclasses import dataclass

ALPHA = {"depth_mup": 0.5, "complete_p": 1.0}
"""Preset -> exponent of depth in its branch multiplier."""


@dataclass(frozen=True)
class Factors:
    """Factors on one parameter's learning rate, epsilon of Adam or RMSprop, and deviation at the start."""

    rate: float = 1.0
    eps: float = 1.0
    init: float = 1.0


@dataclass(frozen=True)
class Parametrisation:
    """A preset at one size."""

    alpha: float
    depth_ratio: float
    """m_L."""
    width_ratio: float
    """m_N."""

    @property
    def branch_multiplier(self) -> float:
        return float(self.depth_ratio**-self.alpha)

    def decay_factors(self, optimizer: str) -> dict[str, float]:
        """Return the factors on weight decays other than 1, by decay group."""
        return dict.fromkeys(("hidden", "last"), self.width_ratio) if optimizer == "adamw" else {}

    def factors(self, name: str, optimizer: str) -> Factors:
        """Return the factors of a parameter of a `NormedNetwork`, by its name."""
        kind, _, place = name.partition("_")
        is_bias, is_sgd, m_N = kind == "b", optimizer == "sgd", self.width_ratio
        if place == "L":
            return Factors() if is_bias else Factors(rate=1 / m_N, init=m_N**-0.5)
        if place in ("0", "e", "p"):
            return Factors(rate=m_N) if is_sgd else Factors(eps=1 / m_N)
        if is_sgd:
            return Factors(rate=self.depth_ratio ** (2 * self.alpha - 1) * (m_N if is_bias else 1.0))
        rate = self.depth_ratio ** (self.alpha - 1) * (1.0 if is_bias else 1 / m_N)
        return Factors(rate, eps=self.branch_multiplier / m_N)
