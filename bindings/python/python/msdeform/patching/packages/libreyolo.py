"""LibreYOLO: the functions of RT-DETR, D-FINE, DEIM, RF-DETR and Deformable-DETR, each in a module of its own."""

from ..data import Package
from .detectron2 import SLOW_PATHS
from .detr import FUNCTIONS

PACKAGE = Package(name="libreyolo", modules=("libreyolo",), tops=("libreyolo",), places=(*FUNCTIONS, *SLOW_PATHS))
