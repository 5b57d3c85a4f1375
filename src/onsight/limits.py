"""Limits on untrusted input, checked before memory or time is spent on it, and other thresholds.

Ordinary files stay far below all of them. Only the pixel limit has a flag
(`--pixel-limit-megapixels`, for large scans); an archive beyond these limits can be unpacked and
given as a folder.
"""

# Images.
IMAGE_FILE_BYTES = 512 * 2**20  # no image is that large, but a misplaced video may be
JPEG_SCANS = 200  # scans of a progressive JPEG; encoders write about ten
SLOW_BMP_PIXELS = 4_000_000  # pixels of a run-length encoded BMP, which Pillow decodes slowly
EXPANSE_PIXELS, PIXELS_A_BYTE = 24_000_000, 4000  # more pixels in fewer bytes: blank, or a bomb
TIFF_SECONDS = 60.0  # decoding time; a TIFF at the pixel limit takes two or three
TIFF_VALUES = 500_000  # numbers in the tags of a TIFF; 64 megapixels in tiles of 16x16 need those
EXIF_BYTES = 2 * 2**20  # EXIF data; cameras write up to 64 kB
PADDED_PIXELS = 16_000_000  # pixels of the frame around a padded image

# Containers of images.
ARCHIVE_MEMBERS = 5_000_000
TAR_ATTRIBUTE_BYTES = 16 * 2**10  # extended attributes of a member: a long path has 4 kB
COMPRESSION_RATIO = 200  # ratio of a zip member or compressed tar; images hardly compress
IDX_IMAGE_PIXELS = 64_000_000
PICKLED_ARRAYS = 32  # arrays and their parts; a CIFAR batch has one of each
PICKLED_CONTAINERS = 1000  # nested deeply, they would exhaust the stack
PICKLED_KEYS = 1000  # keys of a dictionary; crafted keys can make hashes collide
PARQUET_ROWS, ROWS_A_BYTE = 100_000, 10  # more rows in fewer bytes: all alike, or a bomb
ROW_GROUP_BYTES = 1_000_000_000  # size of a Parquet row group of images, which is read whole
LABEL_CHARACTERS = 1000  # of a label in a Parquet file of images; longer ones are captions
SHARD_LABEL_BYTES = 1_000_000
SHARD_INDEX_BYTES = 32 * 2**20  # size of an index of shards, or of a page of links to them
REMOTE_FILES = 1_000_000  # files and folders that a URL or an index may list
BRACE_CHARACTERS = 100_000_000  # length of all addresses that braces in a URL stand for

# Text: annotations, manifests, files of runs.
TEXT_FILE_BYTES = 1_000_000_000  # size of a file read at once; COCO's have up to 0.45 GB
LINE_CHARACTERS = 1_000_000  # length of a line, or of a row of a CSV file
JSON_DEPTH = 64  # arrays and objects within each other; annotations have about ten
PATTERN_SECONDS = 60.0  # to find a regular expression in all paths; five million take about ten

# Files of runs.
TENSOR_HEADER_BYTES = 100_000_000
INPUT_SIDE = 16_384  # pixels of a network's input, in a model file
HIDDEN_UNITS = 65_536  # hidden units of a head

# Statements about a model.
MIN_EVALUATED = 5  # test images of a class: with fewer, nothing is said about its recall
FEW_IMAGES = 30  # test images of a class: with fewer, its recall may be off by over 15 points
