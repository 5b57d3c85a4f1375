"""A batch as training sees it."""


def augment(augmentation, batch, seed, epoch, normalization, classes):
    """The inputs and targets that `Update` makes of a batch that is in no chunk."""
    numbers = augmentation.draw(seed, epoch, batch.ids)
    inputs = augmentation.change(batch.images, numbers, normalization)
    return augmentation.mixed(inputs, batch.labels, numbers, classes)
