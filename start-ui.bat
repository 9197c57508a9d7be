@echo off
rem Opens the window; the first start makes the environment. "--pair-tool [FOLDER]" opens the pair tool alone.
setlocal
set "ROOT=%~dp0"
if defined TASTEMAKER_PYTHON goto found
set "TASTEMAKER_PYTHON=python"
where python >nul 2>nul || set "TASTEMAKER_PYTHON=py -3"
:found
%TASTEMAKER_PYTHON% "%ROOT%scripts\bootstrap.py" --quiet
if errorlevel 1 goto failed
"%ROOT%.venv\Scripts\python.exe" "%ROOT%scripts\train_ui.py" %*
if errorlevel 1 goto failed
exit /b 0
:failed
set "STATUS=%ERRORLEVEL%"
pause
exit /b %STATUS%
