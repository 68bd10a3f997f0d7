"""All ladders by name."""

from benchmarks.quality.arena import arena
from benchmarks.quality.sides import bigrams, gated, ladder, longer, longer_bigrams, sharing, smaller, vocabularies

# Narrow widths have about one half, one quarter and one sixteenth of the dense matrices' parameters: the first two are
# larger than the compressed models with which they compare. Steps of 4,096 tokens: 20 tokens for each of the dense
# matrices' parameters (0.20 M at d=64, 0.80 M at d=128).
LADDERS = {
    "books64": ladder(64, 1000, (48, 32, 16)),
    "books128": longer(128, 3894, (88, 64, 32)),
    "vocabularies64": vocabularies(64, 1000),
    "sharing64": sharing(64, 1000, wider=80),
    "smaller64": smaller(64, 1000),
    "gated64": gated(64, 1000),
    "bigrams64": bigrams(64, 1000),
    "bigrams128": longer_bigrams(128, 3894),
    "arena64": arena(1000),
    "arena64_starved": arena(250),  # 5 tokens for each of the dense matrices' parameters
}
