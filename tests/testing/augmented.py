"""A batch as training sees it."""


def augment(augmentation, batch, seed, epoch, normalization, classes):
    """The inputs and targets that `Update` makes of a batch that is in no chunk."""
    numbers = augmentation.draw_numbers(seed, epoch, batch.ids)
    inputs = augmentation.augment_images(batch.images, numbers, normalization)
    return augmentation.mix_batch(inputs, batch.labels, numbers, classes)
