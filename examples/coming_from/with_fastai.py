"""Train, evaluate, save and use a classifier with fastai.

python with_fastai.py clothes new/01.png 5     (class folders, an image, epochs)
"""

import sys

from fastai.vision.all import (
    ClassificationInterpretation,
    ImageDataLoaders,
    Learner,
    Resize,
    accuracy,
    aug_transforms,
    load_learner,
    xresnet18,
)

if __name__ == "__main__":
    data, image, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    loaders = ImageDataLoaders.from_folder(
        data, valid_pct=0.2, seed=0, item_tfms=Resize(32), batch_tfms=aug_transforms(), bs=32
    )
    # More usual: vision_learner(loaders, resnet18, ...).fine_tune(epochs), which downloads weights.
    learner = Learner(loaders, xresnet18(n_out=loaders.c), metrics=accuracy, path=".")
    learner.fit_one_cycle(epochs)

    ClassificationInterpretation.from_learner(learner).print_classification_report()
    learner.export("model.pkl")
    print(load_learner("model.pkl").predict(image))
