"""The former name of ``runners.campaigns.slime``, for job scripts of 0.1; goes with 0.3."""

from runners.campaigns import slime

__path__ = slime.__path__
