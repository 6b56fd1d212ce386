"""The packages that are known, one file each. To add one, describe it and put it into this list."""

from . import detectron2, detr, groundingdino, libreyolo, mmcv, rfdetr, rtdetr, transformers, ultralytics

# Those of a single package first: they know more about it than those that may be anywhere.
PACKAGES = (
    transformers.PACKAGE,
    ultralytics.PACKAGE,
    rfdetr.PACKAGE,
    libreyolo.PACKAGE,
    rtdetr.PACKAGE,
    mmcv.PACKAGE,
    groundingdino.PACKAGE,
    detr.PACKAGE,
    detectron2.PACKAGE,
)
