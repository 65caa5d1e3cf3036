"""The training loop: from a configuration to a finished or resumable run."""

from runners.campaign.result import CampaignResult
from runners.campaign.run import run_campaign

__all__ = ["CampaignResult", "run_campaign"]
