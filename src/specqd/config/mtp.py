"""The configuration of an MTP layer: a trained head in its target's own checkpoint."""

from dataclasses import dataclass

from specqd.config.fields import Fields


@dataclass(frozen=True, slots=True)
class MtpConfig:
    """What an MTP layer reads: where sources differ, the default is the family's.

    `reads_normed`: the model's final norm has been applied to the hidden rows. `recycles_normed`:
    the next row reads the output of the layer's own final norm. `hidden_first`: the hidden row
    comes before the embedding. `blanks_first`: the first pair of a text has no embedding.
    """

    reads_normed: bool = True
    recycles_normed: bool = True
    hidden_first: bool = False
    blanks_first: bool = False


def read_mtp(fields: Fields, family: MtpConfig) -> MtpConfig:
    """The family's layer; `config.json` may state each field as `mtp_` and its name."""
    return MtpConfig(
        reads_normed=fields.flag("mtp_reads_normed", family.reads_normed),
        recycles_normed=fields.flag("mtp_recycles_normed", family.recycles_normed),
        hidden_first=fields.flag("mtp_hidden_first", family.hidden_first),
        blanks_first=fields.flag("mtp_blanks_first", family.blanks_first),
    )
