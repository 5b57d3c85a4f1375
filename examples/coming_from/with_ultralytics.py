"""Train, evaluate, save and use a classifier with Ultralytics.

python with_ultralytics.py clothes new/01.png 5     (class folders, an image, epochs)
"""

import sys

from ultralytics import YOLO

if __name__ == "__main__":
    data, image, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # More usual: YOLO("yolo11n-cls.pt"), which downloads weights.
    model = YOLO("yolo11n-cls.yaml")
    model.train(data=data, epochs=epochs, imgsz=32, batch=32, device="cpu")

    print("top-1 accuracy", model.val().top1)
    found = model.predict(image)[0]
    print(found.names[found.probs.top1], float(found.probs.top1conf))
