"""The options of the images, audio and video in requests."""

from __future__ import annotations

from typing import Final

from penstock.cli.setting_option import SettingOption, in_panel

MEDIA_OPTIONS: Final = in_panel(
    "Images, audio and video",
    SettingOption(
        "max_image_pixels",
        ("--max-image-pixels",),
        int,
        "Maximum number of pixels of an image, and of a frame of a video.",
    ),
    SettingOption(
        "max_video_frames",
        ("--max-video-frames",),
        int,
        "Maximum number of frames sampled from a video.",
    ),
    SettingOption(
        "max_media_duration_s",
        ("--max-media-duration",),
        float,
        "Maximum duration of audio and video.",
    ),
    SettingOption(
        "max_media_bytes",
        ("--max-media-bytes",),
        int,
        "Maximum size of an image, a recording or a video.",
        "67108864, which is 64 MiB",
    ),
    SettingOption(
        "max_media_items",
        ("--max-media-items",),
        int,
        "Maximum number of images, recordings and videos in a request.",
    ),
    SettingOption(
        "media_processes",
        ("--media-processes",),
        int,
        "Decoding processes of an API process and model; they start at the first use.",
    ),
)
