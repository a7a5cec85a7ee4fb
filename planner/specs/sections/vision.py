"""What contradicts in the `model.vision:` section of a model file."""

from planner.specs.schema import ModelSpec, SpecFault, TrainingSpec


def vision_faults(model: ModelSpec, job: TrainingSpec) -> list[SpecFault]:
    """Return what is wrong between the sizes of a vision tower, and between them and the job."""
    vision = model.vision
    if vision is None:
        return []
    tokens = vision.images * vision.patches // vision.merge
    checks = (
        (
            vision.hidden % vision.heads > 0,
            "heads",
            f"hidden {vision.hidden} is not a multiple of heads {vision.heads}",
            "heads must divide hidden",
        ),
        (
            vision.patches % vision.merge > 0,
            "merge",
            f"{vision.patches} patches cannot be merged by {vision.merge}",
            "merge must divide patches",
        ),
        (
            tokens > job.seq_len,
            "images",
            f"{vision.images} images of {vision.patches} patches make {tokens} tokens, more than"
            f" seq_len {job.seq_len}",
            "the sequence counts them: fewer images, or a longer sequence",
        ),
        (
            vision.block > vision.patches,
            "block",
            f"a block of {vision.block} patches in an image of {vision.patches}",
            f"give at most {vision.patches}, or leave it out",
        ),
        (
            vision.full_every > 0 and not vision.block,
            "full_every",
            "stands without `block`",
            "give the patches of a block, or leave it out",
        ),
        (
            vision.recompute and vision.trained != "all",
            "recompute",
            f"nothing of the tower runs backward with `trained` {vision.trained}",
            "leave it out",
        ),
    )
    return [
        SpecFault(("model", "vision", key), message, fix)
        for failed, key, message, fix in checks
        if failed
    ]
