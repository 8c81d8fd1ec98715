# The server of `tinychat serve`, on a CPU: docs/beyond-one-machine.md.
FROM debian:12-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

COPY pyproject.toml README.md LICENSE /src/
COPY tinychat /src/tinychat
COPY weights/demo /src/weights/demo
RUN python3 -m venv /opt/tinychat \
    && /opt/tinychat/bin/pip install --no-cache-dir "/src[serve]" \
    && rm -rf /src \
    && useradd --create-home --uid 1000 tinychat

USER tinychat
WORKDIR /home/tinychat
ENV PATH=/opt/tinychat/bin:/usr/local/bin:/usr/bin:/bin

# A model of the catalog or of the hub is downloaded and converted now.
ARG MODEL=demo
ENV TINYCHAT_MODEL=$MODEL
# avx2 or generic compiles now, for any machine that has it; without a name, the first start compiles for its own machine.
ARG ISA=
ENV TINYCHAT_ISA=$ISA
RUN if [ -n "$ISA" ]; then tinychat complete --prompt Hello --max-tokens 8 --no-log; fi

EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["tinychat"]
CMD ["serve", "--host", "0.0.0.0"]
