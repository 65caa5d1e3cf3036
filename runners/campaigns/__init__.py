"""The training loop: from a configuration to a finished or resumable run."""

from runners.campaigns.run import run_campaign
from runners.observe.live import CampaignResult

__all__ = ["CampaignResult", "run_campaign"]
