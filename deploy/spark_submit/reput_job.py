"""``reput`` as a spark-submit application: everything after the file name is the command line.

    spark-submit --properties-file spark-defaults.conf --master spark://HOST:7077 \\
        reput_job.py run /shared/store --output /shared/output --once --json

The submitter sets up Spark: master, memory, the Python of the executors. See docs/install.md.
"""

from reput.cli import main

if __name__ == "__main__":
    main()
