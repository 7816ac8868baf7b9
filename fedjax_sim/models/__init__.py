"""Flax models; what is learned (``task``), and what a model is worth (``evaluation``)."""

from fedjax_sim.models.base import Dropout, FromBytes
from fedjax_sim.models.cnn import VGG11, CifarCNN, DigitsCNN, FemnistCNN, LeNet, ResNet18
from fedjax_sim.models.conv import Conv, max_pool
from fedjax_sim.models.dense import MLP, Dense, LogisticRegression
from fedjax_sim.models.nnx import Nnx
from fedjax_sim.models.pythia import load_pythia
from fedjax_sim.models.recurrent import LSTM, CharLSTM, FrozenTable, SentimentLSTM, frozen_table, random_table
from fedjax_sim.models.transformer import GPTNeoX, GPTNeoXClassifier

__all__ = [
    "CharLSTM", "CifarCNN", "Conv", "Dense", "DigitsCNN", "Dropout", "FemnistCNN", "FromBytes", "FrozenTable",
    "GPTNeoX", "GPTNeoXClassifier", "LSTM", "LeNet", "LogisticRegression", "MLP", "Nnx", "ResNet18", "SentimentLSTM",
    "VGG11", "frozen_table", "load_pythia", "max_pool", "random_table",
]  # fmt: skip
