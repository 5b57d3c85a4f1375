"""Train, evaluate, save and use a classifier with Onsight.

python with_onsight.py clothes new/01.png 5     (class folders, an image, epochs)
"""

import sys

import onsight

if __name__ == "__main__":
    data, image, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # More usual: no model, which trains up to three networks, one of them pretrained.
    run = onsight.train(data, model="sprint", epochs=epochs)

    for row in run.results["classes"]:
        print(f"{row['name']:12} recall {row['recall']:.2f}, {row['images']} images")
    print(run)
    found = onsight.load(run.path)(image)
    print(found.predicted, f"{found.probability:.3f}")
