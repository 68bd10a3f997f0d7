"""Work of a DLRM besides its planned matrices."""

from comera_dist.formats.plan import Plan
from comera_dist.models.dlrm.section import DLRMConfig
from comera_dist.models.work import Work


def interaction(section: DLRMConfig, plan: Plan) -> Work:
    """Dot products of all vectors of a row with each other: one vector for each table, and one for all numbers."""
    vectors = sum(layer.is_embedding for layer in plan.values()) + ("bottom.0" in plan)
    return Work("interaction", "dot products", 2 * vectors * vectors * section.embedding_dim)
