"""What every model says of its heads; a head keeps its name when others are cut out."""

from __future__ import annotations

from torch import nn

from headcount.heads import HeadId, HeadSite
from headcount.models.blocks import AttentionBlock
from headcount.models.config import StackConfig
from headcount.models.multi_head import MultiHeadAttention


class HeadedModel(nn.Module):
    """A model whose attention is in `AttentionBlock`s."""

    config: StackConfig

    @property
    def blocks(self) -> dict[HeadSite, AttentionBlock]:
        """Every attention block, also one that lost all of its heads."""
        found = {module.site: module for module in self.modules() if isinstance(module, AttentionBlock)}
        return {site: found[site] for site in self.config.sites}

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """Every attention site that has heads."""
        return tuple(site for site, block in self.blocks.items() if block.heads)

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """Every head that is there."""
        return tuple(head for block in self.blocks.values() for head in block.heads)

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """The heads of one site, in the order in which its weights and its projection have them."""
        return self.blocks[site].heads

    @property
    def projections(self) -> dict[HeadSite, nn.Linear]:
        """The output projection of every site that has heads: it reads their outputs side by side."""
        attentions = {site: block.attention for site, block in self.blocks.items()}
        return {site: each.output for site, each in attentions.items() if isinstance(each, MultiHeadAttention)}
